"""The contents of one experiment's report, in order and without layout."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from fedskew.formatting import plural
from fedskew.report.claims import Verdict, claims_table, counted, judge, never_lines
from fedskew.report.differences import ABOUT as ABOUT_DIFFERENCES
from fedskew.report.differences import comparison, difference_table, reach_table
from fedskew.report.format import NONE, SELECTION_WORDS, Table, table, words
from fedskew.report.inference import RESAMPLES
from fedskew.report.results import ColumnResults, ExperimentResults
from fedskew.report.runs import Run
from fedskew.report.tables import (
    ABOUT_RANKING,
    client_tables,
    main_table,
    number_table,
    of_columns,
    ranking_table,
    recall_table,
    selection_table,
    tuning_table,
)
from server_app.evaluation import PositiveClass
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS, Scalar
from server_app.settings import defaults

CLAIMS = (
    "A claim holds where the whole 95 % interval of its difference lies above the margin that it names, in every "
    "one of its columns or in as many as it names, and p is below 0.05; it does not hold where no part of the interval "
    "does, and otherwise it is not distinguishable. The interval is that of the differences below: the wider of "
    f"Student's over the seeds and a hierarchical bootstrap of {RESAMPLES:,} draws (seeds, and within a seed the test "
    "examples of each class, or the subjects). Examples are drawn apart for the two methods, though both saw the same "
    "ones, which makes the interval wider than it need be. One seed says nothing about others. Of several "
    "columns the smallest of those that count is shown. Rounds are counted until either row first has the number "
    "that the other one has in the end; a row that never has it, or ends below it, counts as one more round than "
    "were run; a number that is not above chance, or had in the first evaluated round, is none to be sooner at. p "
    "is of the paired t-test that the difference is the margin, two-sided, corrected for the claims (Holm)."
)
REACH = (
    "Counted in evaluated rounds. Rows that differ only in what is deployed share one training; its bytes count whole. "
    "The row that is to be reached has its number in the round that is selected. A row that ends below that number had "
    "it and lost it again."
)
SELECTED = (
    "The best test round is chosen on the test set itself, which nobody could do in earnest; the means are over the "
    "last evaluated rounds."
)
CLIENTS = (
    "Local accuracy is what to expect on a client's own mix of classes: its class shares times the recalls. The worst "
    "decile is the mean of the lowest tenth of the clients."
)
CURVES = (
    "Lines are means over seeds; bands, of up to three rows, reach from the lowest to the highest. The table has the "
    "number of the {selected}."
)
TUNING = (
    "Every value was tried on another seed than the table's, which draws other clients and training images; test "
    "images may be the same. The number is the table's. The best is strong; a star marks one at an end of what was "
    "tried."
)
GROUPS = {name: (f"{name}-recall", "") for name in ("many", "medium", "few")}
SPREAD = {
    "local accuracy": ("local-accuracy.mean", ""),
    "worst decile": ("local-accuracy.worst-decile", ""),
    "worst client": ("local-accuracy.worst", ""),
    "accuracy at clients": ("client-accuracy.mean", ""),
    "its worst decile": ("client-accuracy.worst-decile", ""),
    "at the worst client": ("client-accuracy.worst", ""),
}
CALIBRATION = {
    "calibration error": ("calibration-error", ""),
    "test loss": ("loss", ""),
    "Brier score": ("brier", ""),
}
CHANCE_REMEDY = (
    "look at the data with `fedskew data check`, and try another learning-rate or more rounds"
)
ABOUT_CALIBRATION = (
    "Expected calibration error in percent (15 bins); loss in nats; Brier score as it is."
)
MOST_NAMES = 12
"""Classes whose names are listed."""
ALWAYS = ("partition", "alpha", "model", "rounds", "local-epochs", "batch-size", "learning-rate")
"""Settings that are shown even where they have their default."""
ELSEWHERE = {"dataset", "classes", "input-shape", "mean", "std", "clients", "method", "seed"}
"""Settings that other lines or the table itself show."""
USE_ALPHA = ("lda", "feddf", "llt", "quantity")
"""The partitions that alpha has an effect on."""


@dataclass(frozen=True)
class Section:
    """A part of the details. Its figures are in `figures.figures`, by its key."""

    key: str
    title: str
    about: str
    tables: Sequence[Table]


@dataclass(frozen=True)
class Document:
    """One experiment's report."""

    results: ExperimentResults
    verdicts: Sequence[Verdict]
    subtitle: str
    headline: str
    """The verdict in a sentence."""
    what_was_run: Mapping[str, str]
    """What was run, by heading."""
    main: Table
    sections: Sequence[Section]

    @property
    def claims(self) -> list[tuple[Verdict, str]]:
        """Every verdict, and its words with the difference and the interval, as the claims' table has them."""
        shown = []
        rows = claims_table(self.results, self.verdicts).rows
        for verdict, cells in zip(self.verdicts, rows, strict=True):
            _, says, effect, _ = cells
            words = f"{says.text}, {effect.text}" if verdict.n else says.text
            shown.append((verdict, words))
        return shown

    @property
    def assumed(self) -> str:
        """The settings that the paper leaves open, in a sentence; empty if there are none."""
        settings = ", ".join(f"{key} = {value}" for key, value in self.results.assumed.items())
        return f"Not specified by the paper; these runs use: {settings}." if settings else ""

    @property
    def short_table(self) -> Table:
        """The main table with every row's difference from the reference row below its numbers."""
        return main_table(self.results, with_differences=True)


def document(results: ExperimentResults) -> Document:
    """Return the report on an experiment, of which at least one run has finished or diverged."""
    results = replace(results, warnings=(*results.warnings, *never_lines(results)))
    verdicts = judge(results)
    return Document(
        results=results,
        verdicts=verdicts,
        subtitle=subtitle(results),
        headline=headline(results, verdicts),
        what_was_run=what_was_run(results),
        main=main_table(results),
        sections=sections(results, verdicts),
    )


def sections(results: ExperimentResults, verdicts: Sequence[Verdict]) -> list[Section]:
    """Return the parts of the details."""

    def numbers(caption: str, by_heading: Mapping[str, tuple[str, str]]) -> list[Table]:
        return of_columns(results, partial(number_table, caption=caption, numbers=by_heading))

    claims = [claims_table(results, verdicts)] if verdicts else []
    reach = [reach_table(results)] if len(results.experiment.rows) > 1 else []
    about_curves = CURVES.format(selected=SELECTION_WORDS[results.experiment.selection])
    of_clients = numbers("over the clients, in percent.", SPREAD)
    of_clients += chain.from_iterable(map(client_tables, results.columns))
    of_classes = numbers("recall by shot group in percent.", GROUPS)
    of_classes += of_columns(results, recall_table)
    ranking = of_columns(results, ranking_table)
    compared = of_columns(results, difference_table)
    tuned = of_columns(results, partial(tuning_table, results))
    selected = of_columns(results, selection_table)
    calibration = numbers("calibration.", CALIBRATION)
    return [
        Section("claims", "Claims", CLAIMS, claims),
        Section("differences", "Differences", ABOUT_DIFFERENCES, compared),
        Section("tuning", "Tuning", TUNING, tuned),
        Section("curves", "Round by round", about_curves, []),
        Section("reach", "Rounds and bytes", REACH, reach),
        Section("selections", "Every way to choose the round", SELECTED, selected),
        Section("classes", "Classes", "", of_classes),
        Section("ranking", "Ranking of the test samples", ABOUT_RANKING, ranking),
        Section("clients", "Clients", CLIENTS, of_clients),
        Section("calibration", "Calibration", ABOUT_CALIBRATION, calibration),
        Section("runs", "Runs", "", [runs_table(results)]),
    ]


def subtitle(results: ExperimentResults) -> str:
    """Return what was run, in a line."""
    experiment = results.experiment
    parts = [
        experiment.paper,
        plural(len(experiment.rows), "method"),
        plural(len(experiment.columns), "column"),
        plural(len(results.seeds), "seed"),
        f"{len(results.finished)} of {len(results.runs)} runs finished",
    ]
    return ", ".join(filter(None, parts))


def headline(results: ExperimentResults, verdicts: Sequence[Verdict]) -> str:
    """Return the result in a sentence: how many claims hold, or without claims whether the rows differ.

    Rows that diverged or are no better than chance are named with what to do, and are in no comparison.
    """
    sentences = [claims_in_words(verdicts)] if verdicts else []
    for column in results.columns:
        if not verdicts:
            sentences.append(comparison(column))
        sentences += map(column.titled, unfit_sentences(column))
    return " ".join(filter(None, sentences))


def unfit_sentences(column: ColumnResults) -> list[str]:
    """Return which rows of a column lead no headline, why, and what to do: a sentence for each cause."""
    sentences = []
    at_chance = []
    for row in column.rows:
        if row.diverged:
            seed, how = next(iter(row.diverged.items()))
            where = f"{row.divergence}, seed {seed} in round {how['round']}"
            sentences.append(f"{where}: {how['reason']} ({how['remedy']}).")
        elif row.at_chance:
            at_chance.append(f"{row.row} ({row.at_chance})")
    if at_chance:
        cause = f"no better than chance in {words(column.metric)}: {', '.join(at_chance)}"
        sentences.append(f"{cause}: {CHANCE_REMEDY}.")
    return sentences


def claims_in_words(verdicts: Sequence[Verdict]) -> str:
    """Return in a sentence how many claims hold."""
    parts = counted([verdict.status for verdict in verdicts])
    return f"Of {plural(len(verdicts), 'claim')}, {', '.join(parts)}."


# ---- what was run ----------------------------------------------------------------------------------------------------


def what_was_run(results: ExperimentResults) -> dict[str, str]:
    """Return by heading what was run, of the plan's settings and of what the finished runs have recorded."""
    runs = list(results.runs.values())
    flat = [run.settings.flat() for run in runs]
    positives: list[PositiveClass] = []
    for column in results.columns:
        positives += [run.positive_class for run in column.runs if run.positive_class is not None]
    texts = {
        "data": distinct(map(data, runs)),
        "clients": clients(runs),
        "settings": settings_in_words(flat),
        "seeds": ", ".join(map(str, results.seeds)),
        "tested": tested(results.finished),
        "positive class": distinct(positive.name for positive in positives),
    }
    return {heading: text for heading, text in texts.items() if text}


def settings_in_words(flat: Sequence[Mapping[str, Scalar]]) -> str:
    """Return the settings in ALWAYS, and those that differ from their defaults, with their values over the runs."""
    usual = defaults()
    elsewhere = ELSEWHERE | WITHOUT_EFFECT_ON_NUMBERS
    if not any(settings["partition"] in USE_ALPHA for settings in flat):
        elsewhere |= {"alpha"}
    shown = dict.fromkeys(ALWAYS)  # as a set, in the settings' order
    for settings in flat:
        shown |= dict.fromkeys(key for key, value in settings.items() if value != usual[key])
    texts = []
    for key in shown:
        values = distinct((settings.get(key, "") for settings in flat), " or ")
        if values and key not in elsewhere:
            texts.append(f"{key} {values}")
    return ", ".join(texts)


def distinct(texts: Iterable[object], between: str = "; ") -> str:
    """Return the distinct texts."""
    return between.join(dict.fromkeys(filter(None, map(str, texts))))


def data(run: Run) -> str:
    """Return a run's data set with its inputs and classes."""
    settings = run.settings.data
    names = settings.class_names
    classes = f"{len(names)} classes"
    if len(names) <= MOST_NAMES and not all(map(str.isdecimal, names)):
        classes += f": {', '.join(names)}"
    return f"{run.data_name}, inputs {settings.input_shape}, {classes}"


def clients(runs: Sequence[Run]) -> str:
    """Return how many clients there are, and between which bounds their numbers of samples are."""
    sites = distinct(", ".join(run.sites) for run in runs if run.agreement)
    if sites:
        return f"{sites}; how many samples of which class each holds is known there alone"
    text = distinct((run.settings.data.clients for run in runs), " or ")
    sizes: list[int] = []
    for run in runs:
        sizes += [sum(counts_C) for counts_C in run.samples.get("train", ())]
    return f"{text}, {span(sizes)} training samples each" if sizes else text


def tested(runs: Sequence[Run]) -> str:
    """Return on what the models were tested, and by whom."""
    if any(run.agreement for run in runs):
        return "by the sites, each on its own test set, whose size is known there alone"
    by_whom = [run.records[-1].evaluated_by for run in runs]
    shown = [distinct(f"by the {name}" for name in by_whom if name != "nobody")]
    sizes = [sum(run.samples["test"]) for run in runs if run.samples]
    if sizes:
        shown.append(f"{span(sizes)} test samples")
    return ", ".join(filter(None, shown))


def span(values: Sequence[int]) -> str:
    """Return the smallest and the largest of some numbers."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def runs_table(results: ExperimentResults) -> Table:
    """Return every run of the plan, how far it is, and what made it."""
    made_with = {"code": "code", "torch": "torch", "flwr": "flwr", "CPU": "cpu", "device": "device"}
    rows = []
    for run in results.runs.values():
        made = [run.versions[key] if run.origin else NONE for key in made_with.values()]
        partition = str(run.origin.get("partition-hash", NONE))[:12]
        rows.append((run.name, run.state, *made, partition, run.hash[:12] or NONE))
    headings = ("run", "state", *made_with, "partition hash", "model hash")
    caption = "The runs, what made them, and the hashes of their data and models."
    return table(caption, headings, rows, wordy=True)
