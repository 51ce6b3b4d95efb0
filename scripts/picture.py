"""Draw finished experiments beside each other: balanced accuracy by round, mean and range of the seeds.

python scripts/picture.py FILE.png [--html FILE] [--results FOLDER] NAME...

With --html it writes and prints what `fedskew report` does as well, in one process that loads everything once.
"""

import argparse
from pathlib import Path
from textwrap import fill

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedskew.cli.terminal import console
from fedskew.experiments.experiments import find_all
from fedskew.report.document import document
from fedskew.report.render import html, terminal_text
from fedskew.report.results import gather

COLORS = ("#c1440e", "#1f6f8b", "#8a6d3b")
FEDAVG = "#8a8a8a"


def main() -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("names", nargs="+")
    parser.add_argument("--html")
    parser.add_argument("--results", default="results")
    stated = parser.parse_args()
    experiments = find_all(stated.names)
    figure = Figure(figsize=(3.2 * len(experiments), 3.1), layout="constrained")
    panels = figure.subplots(1, len(experiments), squeeze=False)[0]
    everything = [
        gather(experiment, {"results": stated.results, "data-root": "."})
        for experiment in experiments
    ]
    for axes, experiment, gathered in zip(panels, experiments, everything, strict=True):
        colors = iter(COLORS)
        for row in experiment.rows:
            runs = gathered.of(row.label, next(iter(experiment.columns))).runs
            rounds = [point.round for point in runs[0].points]
            accuracy = [
                [seed.value(point, "balanced-accuracy") for point in seed.points] for seed in runs
            ]
            percent = 100 * np.array(accuracy, float)
            color = FEDAVG if row.label == "fedavg" else next(colors)
            if len(rounds) == 1:  # of a model that is made once, after the last round
                axes.plot(
                    [rounds[0]] * 2,
                    [percent.min(), percent.max()],
                    color=color,
                    alpha=0.4,
                    linewidth=4,
                )
            marker = "o" if len(rounds) == 1 else ""
            axes.plot(rounds, percent.mean(0), color=color, marker=marker, label=row.label)
            axes.fill_between(
                rounds,
                percent.min(0),
                percent.max(0),
                color=color,
                alpha=0.15,
                linewidth=0,
            )
        axes.set_title(fill(experiment.title.split(" (")[0], 36), fontsize=10)
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right", fontsize=9, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("balanced accuracy, %\n(mean and range of seeds)")
    figure.savefig(stated.file, dpi=110)
    print(f"written: {stated.file}")
    if stated.html:
        documents = [document(gathered) for gathered in everything]
        Path(stated.html).write_text(html(documents))
        print(terminal_text(documents, console().width), end="")


if __name__ == "__main__":
    main()
