"""The report's figures, one panel each: curves, partition, recall, spread over clients, time, claims."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedskew.report.format import SELECTION_WORDS, chance_of, in_percent, plain, words_and_unit
from fedskew.report.inference import Floats
from fedskew.report.results import ExperimentResults, SeedResult
from fedskew.report.svg import COLORS, INK, Drawing, Figure, Style
from fedskew.report.unfit_rows import tested_in
from server_app.keys import MEANS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


ROOM_FOR_DISCS = 7.0
"""Points of a client's row, or a class's column."""


def styles(results: ExperimentResults) -> dict[str, Style]:
    """Return the style of every row."""
    return {
        row.label: Style(row.label, number) for number, row in enumerate(results.experiment.rows)
    }


def curve(group: Sequence[SeedResult], metric: str) -> tuple[list[int], Floats] | None:
    """Return the evaluated rounds, and (seeds, rounds) of a number; NaN where a run has none. None where nothing is."""
    scale = 100 if in_percent(metric) else 1
    by_run = []
    for measured in group:
        run = {}
        for point in measured.points:
            number = measured.number(point, metric)
            if number is not None:
                run[point.round] = scale * number
        by_run.append(run)
    rounds = sorted(set().union(*by_run))
    if not rounds:
        return None
    values = [[run.get(round, np.nan) for round in rounds] for run in by_run]
    return rounds, np.array(values, float)


def curves(results: ExperimentResults, column: str, metric: str, name: str) -> Figure | None:
    """Return a number over the rounds: the mean over seeds, and a band from the lowest to the highest.

    With more than three rows a bar beside the last round stands for the band. A dotted line is chance. Where the table
    has this number as a mean over the last rounds, a thick line over them is at that mean, as the curve ends elsewhere.
    """
    from matplotlib.ticker import MaxNLocator

    drawable = {}
    for row in results.experiment.rows:
        points = curve(results.of(row.label, column), metric)
        if points is not None:
            drawable[row.label] = points
    if not drawable:
        return None
    looks = styles(results)
    selection = results.experiment.selection
    is_tables = metric == results.experiment.metric_of(column)
    averaged = MEANS.get(selection, 0) if is_tables else 0
    classes = tested_in(results.in_column(column), selection)

    def draw(axes: "Axes") -> None:
        marked = ""
        for number, (row, (rounds, values)) in enumerate(drawable.items(), 1):
            color = looks[row].color
            complete = ~np.isnan(values).any(0)
            x = np.array(rounds)[complete]
            y = values[:, complete]
            mean, low, high = y.mean(0), y.min(0), y.max(0)
            axes.plot(
                x,
                mean,
                color=color,
                linestyle=looks[row].line,
                linewidth=1.6,
            )
            if len(values) > 1:
                alpha = 0.13 if len(drawable) <= 3 else 0.0  # more bands than three melt into one
                axes.fill_between(
                    x,
                    low,
                    high,
                    color=color,
                    alpha=alpha,
                    linewidth=0,
                )
                if not alpha:
                    # A bar of each row stands a little further right than the one before it.
                    beyond = x[-1] + 0.015 * number * max(1, x[-1] - x[0])
                    axes.plot([beyond, beyond], [low[-1], high[-1]], color=color, linewidth=3)
            if len(x) == 1:
                axes.plot(x, mean, color=color, marker="o", markersize=4)
            elif averaged and len(x) >= averaged:
                last = x[-averaged:]
                level = mean[-averaged:].mean()
                axes.plot([last[0], last[-1]], [level, level], color=color, linewidth=4, alpha=0.5)
                marked = f" (thick: the table's {SELECTION_WORDS[selection]})"
        draw_chance(axes, metric, classes)
        axes.set(xlabel=f"round{marked}", ylabel=words_and_unit(metric))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y")

    ends = {row: float(values[:, -1].mean()) for row, (_, values) in drawable.items()}
    last_round = max(rounds[-1] for rounds, _ in drawable.values())
    alt = ends_in_words(ends, metric, last_round)
    return Figure(column, alt, Drawing(name, 3.0, draw), by_row=True)


def draw_chance(axes: "Axes", metric: str, classes: int) -> None:
    """Draw a dotted line at chance, where a number has one."""
    chance = chance_of(metric, classes) if classes else None
    if chance is not None:
        axes.axhline(
            chance,
            color=INK,
            linewidth=0.8,
            linestyle=(0, (1, 3)),
        )
        axes.annotate(
            "chance",
            (1, chance),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=8,
        )


def ends_in_words(ends: Mapping[str, float], metric: str, round: int) -> str:
    """Return the curves' last values, the highest first."""
    finite = {row: value for row, value in ends.items() if not np.isnan(value)}
    shown = []
    for row in sorted(finite, key=finite.__getitem__, reverse=True):
        value = plain(finite[row], metric)
        shown.append(f"{row} {value}")
    listed = ", ".join(shown)
    if not shown:
        listed = "nothing finite"
    number = words_and_unit(metric).capitalize()
    return f"{number} by round; in round {round}: {listed}."


def matrix(measured: SeedResult, column: str, name: str) -> Figure | None:
    """Return the training samples by class and client: discs whose areas are their numbers.

    Where there is no room for discs, each is a field, as dense as the number's square root.
    """
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    samples = measured.run.samples
    if not samples:
        return None
    counts_KC = np.array(samples["train"])
    clients, classes = counts_KC.shape
    # In inches; 0.7 of the height, and of a panel's width all but 3.6, are for the axes' labels.
    height = float(np.clip(0.22 * clients + 0.7, 1.6, 6.0))
    column_width = 3.6 / classes
    row_height = (height - 0.7) / clients
    room = min(column_width, row_height) * 72  # matplotlib's sizes are in points

    def draw(axes: "Axes") -> None:
        rows, columns = np.nonzero(counts_KC)
        shares = counts_KC[rows, columns] / counts_KC.max()
        if room >= ROOM_FOR_DISCS:
            areas = np.clip(0.8 * room * room * shares, 0.8, None)
            axes.scatter(columns, rows, s=areas, color=COLORS[1], linewidth=0)
        else:
            fields = [
                Rectangle((x - 0.5, y - 0.5), 1, 1) for x, y in zip(columns, rows, strict=True)
            ]
            dense = PatchCollection(
                fields,
                facecolor=COLORS[1],
                linewidth=0,
                alpha=np.sqrt(shares),
            )
            axes.add_collection(dense)
        axes.set(
            xlim=(-0.7, classes - 0.3),
            ylim=(clients - 0.3, -0.7),  # the first client is at the top
            xlabel="class",
            ylabel="client",
        )
        if clients <= 24:
            axes.set_yticks(range(clients), samples["clients"])
        if classes <= 12:
            names = measured.run.settings.data.class_names
            turned = max(map(len, names)) * classes > 40
            labels = list(map(shortened, names))
            axes.set_xticks(range(classes), labels, rotation=90 if turned else 0)

    classes_K = (counts_KC > 0).sum(1)
    sizes_K = counts_KC.sum(1)
    sizes_C = counts_KC.sum(0)
    alt = (
        f"{counts_KC.sum()} training samples of {classes} classes at {clients} clients, seed {measured.cell.seed}: "
        f"a client holds {classes_K.min()} to {classes_K.max()} classes "
        f"and {sizes_K.min()} to {sizes_K.max()} samples; "
        f"the largest class has {sizes_C.max()}, the smallest {sizes_C.min()}."
    )
    return Figure(column, alt, Drawing(name, height, draw), fixed=True)


def shortened(name: str) -> str:
    """Return a class's name as an axis has room for it."""
    return name if len(name) <= 16 else f"{name[:14]}..."


def confusion(counts_CC: Floats, names: Sequence[str], title: str, name: str) -> Figure:
    """Return the confusion matrix: of every class the share predicted as each, in percent where there is room."""
    from matplotlib.patches import Rectangle

    samples_C1 = counts_CC.sum(1, keepdims=True)
    shares_CC = 100 * counts_CC / np.maximum(samples_C1, 1)
    classes = len(names)
    labels = list(map(shortened, names))

    def draw(axes: "Axes") -> None:
        for (row, column), share in np.ndenumerate(shares_CC):
            square = Rectangle(
                (column - 0.5, row - 0.5),
                1,
                1,
                color=COLORS[1],
                alpha=0.75 * share / 100,
                linewidth=0,
            )
            axes.add_patch(square)
            if classes <= 10 and share >= 0.5:  # a smaller share would read 0
                axes.text(column, row, f"{share:.0f}", ha="center", va="center", fontsize=9)
        axes.set(
            xlim=(-0.5, classes - 0.5),
            ylim=(classes - 0.5, -0.5),
            xlabel="predicted",
            ylabel="true class",
        )
        turned = max(map(len, labels)) * classes > 40
        axes.set_xticks(range(classes), labels, rotation=90 if turned else 0)
        axes.set_yticks(range(classes), labels)

    recalls = []
    for label, share in zip(names, shares_CC.diagonal(), strict=True):
        recalls.append(f"{label} {share:.0f}")
    alt = f"Confusion matrix, {title}: percent predicted rightly: {', '.join(recalls)}."
    height = min(4.2, 1.6 + 0.26 * classes)
    return Figure(title, alt, Drawing(name, height, draw), fixed=True)


def recall_curve(
    recalls: Mapping[str, Floats],
    looks: Mapping[str, Style],
    column: str,
    order: Sequence[int],
    name: str,
) -> Figure:
    """Return the recall by class, a moving mean over five of them, from the most training samples to the fewest."""

    def draw(axes: "Axes") -> None:
        for row, recall_C in recalls.items():
            ordered_C = np.nan_to_num(recall_C[list(order)])
            smooth = np.convolve(ordered_C, np.ones(5) / 5, mode="valid")
            x = np.arange(len(smooth)) + 2  # the mean of five stands at the third of them
            style = looks[row]
            axes.plot(
                x,
                smooth,
                color=style.color,
                linestyle=style.line,
                linewidth=1.4,
            )
        axes.set(
            xlabel="classes, most training samples first (mean of 5)",
            ylabel="recall, %",
            ylim=(0, 100),
        )
        axes.grid(axis="y")

    third = max(1, len(order) // 3)
    rarest = list(order[-third:])
    means = [f"{row} {np.nanmean(recall_C[rarest]):.1f}" for row, recall_C in recalls.items()]
    alt = f"Recall by class; mean of the rarest third in percent: {', '.join(means)}."
    return Figure(column, alt, Drawing(name, 3.0, draw), by_row=True)


def recall_by_round(
    recall_RC: Floats,
    rounds: Sequence[int],
    names: Sequence[str],
    title: str,
    name: str,
) -> Figure:
    """Return the recall of every class in each evaluated round, as shades: white is 0, full color is 100 percent.

    Args:
        recall_RC: in percent, (rounds, classes), the classes in the order in which they are shown; NaN stays white.
        rounds: the evaluated ones.
        names: of the classes.
        title: the row, and the column where there are several.
        name: makes the figure's ids unique in the page.
    """
    classes = len(names)

    def draw(axes: "Axes") -> None:
        from matplotlib.colors import to_rgba

        image_CR4 = np.tile(np.array(to_rgba(COLORS[1])), (classes, len(rounds), 1))
        image_CR4[..., 3] = (
            np.nan_to_num(recall_RC.T) / 100
        )  # a dark page shines through as a light one does
        axes.imshow(image_CR4, aspect="auto", interpolation="nearest")
        ticks = np.unique(np.linspace(0, len(rounds) - 1, min(6, len(rounds))).round().astype(int))
        axes.set_xticks(ticks, [str(rounds[tick]) for tick in ticks])
        axes.set_yticks(range(classes), list(map(shortened, names)))
        axes.set(xlabel="round", ylabel="class")

    lasts = []
    for label, recall in zip(names, recall_RC[-1], strict=True):
        lasts.append(f"{label} {recall:.0f}")
    alt = (
        f"Recall by class and round, {title}; in round {rounds[-1]} in percent: {', '.join(lasts)}."
    )
    height = min(4.2, 1.0 + 0.2 * classes)
    return Figure(title, alt, Drawing(name, height, draw), fixed=True)


def spread(
    accuracies: Mapping[str, Sequence[Sequence[float]]],
    looks: Mapping[str, Style],
    column: str,
    what: str,
    name: str,
    *,
    decile: bool,
) -> Figure:
    """Return one strip per row with the clients of all seeds, one dot each.

    A bar is at the mean and a circle at the worst decile, or at the worst client: both means over the seeds.
    """
    lowest_words = "worst decile" if decile else "worst client"
    lowest_of = worst_decile if decile else min
    means, lowest = {}, {}
    for row, runs in accuracies.items():
        means[row] = float(np.mean([np.mean(values) for values in runs]))
        lowest[row] = float(np.mean([lowest_of(values) for values in runs]))

    def draw(axes: "Axes") -> None:
        for y, (row, runs) in enumerate(accuracies.items()):
            ordered = np.sort(np.concatenate(runs))
            # Neighbors stand apart, and without a random number: a report is the same every time.
            offsets = 0.26 * np.sin(2.4 * np.arange(len(ordered)))
            sparse = min(1.0, 60 / len(ordered))  # many dots would melt into a bar
            axes.scatter(
                ordered,
                y + offsets,
                s=4 + 8 * sparse,
                color=looks[row].color,
                alpha=0.25 + 0.35 * sparse,
                linewidth=0,
            )
            mean = means[row]
            axes.plot([mean, mean], [y - 0.4, y + 0.4], color=INK, linewidth=2.2)
            axes.scatter(
                [lowest[row]],
                [y],
                s=70,
                facecolor="none",
                edgecolor=INK,
                linewidth=1.6,
                zorder=3,
            )
        axes.set_yticks(range(len(accuracies)), list(accuracies))
        axes.set(ylim=(len(accuracies) - 0.5, -0.5), xlabel=f"{what}, %")
        axes.grid(axis="x")

    spreads = []
    for row in accuracies:
        spreads.append(f"{row} mean {means[row]:.1f}, {lowest_words} {lowest[row]:.1f}")
    alt = f"{what.capitalize()} of the clients in percent: {'; '.join(spreads)}."
    height = 0.34 * len(accuracies) + 0.8
    return Figure(column, alt, Drawing(name, height, draw))


def worst_decile(values: Sequence[float]) -> float:
    """Return the mean of the lowest tenth, at least of one."""
    number = max(1, len(values) // 10)
    return float(np.sort(values)[:number].mean())


def stacked(split: Mapping[str, Mapping[str, float]], column: str, name: str) -> Figure:
    """Return seconds per round as bars of parts, one bar per training."""

    trainings = list(split)
    parts = list(split[trainings[0]])
    bars = range(len(trainings))

    def draw(axes: "Axes") -> None:
        ends = np.zeros(len(trainings))
        for part, color in zip(parts, COLORS[1:], strict=False):
            widths = np.array([seconds[part] for seconds in split.values()])
            axes.barh(bars, widths, left=ends, color=color, height=0.6)
            ends += widths
        axes.set_yticks(bars, trainings)
        axes.set(ylim=(len(trainings) - 0.4, -0.6), xlabel="seconds a round")

    totals = []
    for row, seconds in split.items():
        total = sum(seconds.values())
        totals.append(f"{row} {total:.2g}, of it clients {seconds['clients']:.2g}")
    alt = f"Seconds a round: {'; '.join(totals)}."
    height = 0.34 * len(split) + 0.8
    return Figure(column, alt, Drawing(name, height, draw))


@dataclass(frozen=True)
class Effect:
    """A line of a forest plot."""

    name: str
    estimate: float
    by_seed: Sequence[float]
    ends: tuple[float, float] | None
    """Of the interval."""
    beyond: float = 0.0
    """The margin that a claim names."""
    decided: bool = False
    """Whether the interval leaves out the margin, with more than one seed."""


def forest(effects: Sequence[Effect], unit: str, title: str, name: str) -> Figure:
    """Return differences: a dot per seed, a band for the interval, and a diamond for the estimate.

    The diamond is filled where the interval leaves out the tick, which is what is claimed.
    """

    color = COLORS[1]

    def draw(axes: "Axes") -> None:
        for y, effect in enumerate(effects):
            if effect.ends:
                axes.plot(
                    effect.ends,
                    [y, y],
                    color=color,
                    linewidth=6,
                    alpha=0.3,
                    solid_capstyle="butt",
                )
            seeds = len(effect.by_seed)
            axes.scatter(
                effect.by_seed,
                np.full(seeds, y),
                s=14,
                color=color,
                linewidth=0,
                zorder=3,
            )
            axes.scatter(
                [effect.estimate],
                [y],
                s=60,
                marker="D",
                facecolor=color if effect.decided else "none",
                edgecolor=color,
                zorder=3,
            )
            margin = effect.beyond
            axes.plot([margin, margin], [y - 0.32, y + 0.32], color=INK, linewidth=1.6)
        axes.set_yticks(range(len(effects)), [wrapped(effect.name) for effect in effects])
        axes.set(
            ylim=(len(effects) - 0.5, -0.5),
            xlabel=f"difference, {unit}" if unit else "difference",
        )
        axes.grid(axis="x")

    estimates = "; ".join(f"{effect.name} {effect.estimate:+.1f}" for effect in effects)
    alt = f"Differences in {unit}: {estimates}."
    height = 0.4 * len(effects) + 0.8
    return Figure(title, alt, Drawing(name, height, draw))


def wrapped(name: str, width: int = 26) -> str:
    """Return a label in as many lines as it needs, three at most."""
    lines = textwrap.wrap(name, width)
    shown = "\n".join(lines[:3])
    return f"{shown}..." if len(lines) > 3 else shown
