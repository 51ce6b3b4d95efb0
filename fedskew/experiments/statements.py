"""What the papers say: `statements:` of experiments.yaml, read strictly. report/statements.py judges them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data import SettingError, require
from fedskew.experiments.entries import built, entries_of, shown
from fedskew.experiments.experiments import FILE, STATEMENTS, Claim, Experiment, load_experiments
from server_app.keys import SELECTIONS

FACTS = ("largest-class-share", "classes-held")
"""Facts of a partition, each a mean over the clients: the share of a client's most frequent class, and the number of
classes that a client has samples of."""
FACT = re.compile(rf"({'|'.join(FACTS)}) (>=|<=) ([0-9]+(?:\.[0-9]+)?)")
NUMBERS = (
    "accuracy",
    "balanced-accuracy",
    "macro-f1",
    "loss",
    "calibration-error",
    "brier",
    "auroc",
    "auprc",
    "many-recall",
    "medium-recall",
    "few-recall",
    "matching-loss",
)
"""Numbers of a run's records, by model or by round."""
BY_SHOT_GROUP = ("matching-loss", "feature-dissimilarity", "feature-pair-dissimilarity")
"""Numbers by class, which records also have as a mean over a shot group: NAME-many, NAME-medium and NAME-few."""
OVER_CLIENTS = (
    "client-accuracy",
    "client-balanced-accuracy",
    "client-auroc",
    "local-accuracy",
)
"""Numbers over the clients: NAME.mean, NAME.worst, NAME.worst-decile or NAME.SITE."""
TEST_NAME = re.compile(r"tests/[\w/]+\.py::\w+")


@dataclass(frozen=True)
class Location:
    """Where a statement is measured: an entry of the file, and which of its columns."""

    entry: str
    columns: tuple[str, ...] = ()
    """In the order in which a trend or a knee runs over them; empty is all of the entry's."""

    def columns_of(self, experiment: Experiment) -> tuple[str, ...]:
        """Return the columns that are meant."""
        return self.columns or tuple(experiment.columns)


@dataclass(frozen=True)
class Term:
    """What decides a statement: one form of the grammar."""

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows that it is about."""
        return ()

    def problem(self, columns: tuple[str, ...]) -> tuple[str, object, str] | None:
        """Return key, value and rule of what is wrong with it over these columns; None where nothing is."""
        return None


@dataclass(frozen=True)
class Better(Term):
    """One row against another: above it, sooner, so many times sooner, or smoother."""

    better: str
    than: str
    by: float = 0.0
    """Points, or rounds, that the difference must exceed; a negative number allows a small loss."""
    sooner: bool = False
    times: float = 0.0
    """With `sooner`: `better` needs at most 1 / times of the rounds; 0 asks for fewer rounds."""
    smoother: bool = False
    """Compare the roughness of the two curves: the mean change between evaluated rounds, in their second half."""
    in_columns: int = 0
    """In how many of the columns it must hold; 0 is in all."""
    metric: str = ""
    selection: str = ""

    @property
    def rows(self) -> tuple[str, ...]:
        return (self.better, self.than)

    def problem(self, columns: tuple[str, ...]) -> tuple[str, object, str] | None:
        most = len(columns)
        if not 0 <= self.in_columns <= most:
            return "in_columns", self.in_columns, f"must be 0 to {most}, its columns"
        if self.times and not self.sooner:
            return "times", self.times, "is for `sooner: true`"
        if self.times and self.times <= 1:
            return "times", self.times, "must be above 1"
        if self.sooner and self.smoother:
            return "smoother", True, "does not go with sooner"
        return None

    @property
    def claim(self) -> Claim:
        """The same as a claim, which report/claims.py measures."""
        return Claim("", self.better, self.than, self.by, self.sooner)


@dataclass(frozen=True)
class Trend(Term):
    """Every row rises, or falls, over the columns in their order.

    The rise is the fitted line's, from the first column to the last. Each step may go the other way by at most `slack`.
    """

    trend: str
    """rises or falls."""
    over: tuple[str, ...]
    """The rows."""
    by: float = 0.0
    """Points that the whole rise must exceed."""
    slack: float = 0.0
    metric: str = ""
    selection: str = ""

    @property
    def rows(self) -> tuple[str, ...]:
        return self.over

    def problem(self, columns: tuple[str, ...]) -> tuple[str, object, str] | None:
        return direction_problem("trend", self.trend) or too_few(columns) or sign_problem(self)


@dataclass(frozen=True)
class Gap(Term):
    """The difference of two rows rises, or falls, over the columns in their order; its fitted line decides."""

    gap: str
    """rises or falls."""
    better: str
    than: str
    by: float = 0.0
    metric: str = ""
    selection: str = ""

    @property
    def rows(self) -> tuple[str, ...]:
        return (self.better, self.than)

    def problem(self, columns: tuple[str, ...]) -> tuple[str, object, str] | None:
        return direction_problem("gap", self.gap) or too_few(columns)


@dataclass(frozen=True)
class Peak(Term):
    """Every row is highest in one of the columns."""

    peak: str
    """The column."""
    over: tuple[str, ...]
    """The rows."""
    by: float = 0.0
    than: str = ""
    """A row: then the difference from it is highest there, not the row itself."""
    metric: str = ""
    selection: str = ""

    @property
    def rows(self) -> tuple[str, ...]:
        return (*self.over, self.than) if self.than else self.over

    def problem(self, columns: tuple[str, ...]) -> tuple[str, object, str] | None:
        if self.peak not in columns:
            return "peak", self.peak, f"must be one of the columns {', '.join(columns)}"
        return too_few(columns)


@dataclass(frozen=True)
class Knee(Term):
    """Over three columns a row falls by more than `by` in the second step, and by more than in the first one."""

    knee: str
    """The row."""
    by: float = 0.0
    metric: str = ""
    selection: str = ""

    @property
    def rows(self) -> tuple[str, ...]:
        return (self.knee,)

    def problem(self, columns: tuple[str, ...]) -> tuple[str, object, str] | None:
        if len(columns) != 3:
            return (
                "knee",
                self.knee,
                f"needs three columns: before, at and after the knee, not {len(columns)}",
            )
        return None


@dataclass(frozen=True)
class Series(Term):
    """A number of a row's records by round: `below` a bound from a round on, falling, or staying above a bound."""

    series: str
    """The number's name."""
    row: str
    below: float | None = None
    by_round: int = 0
    """With `below`: the first round of which it is asked."""
    falls: bool = False
    """Whether the last evaluated round must have less than the first."""
    stays_above: float | None = None

    @property
    def rows(self) -> tuple[str, ...]:
        return (self.row,)

    def problem(self, columns: tuple[str, ...]) -> tuple[str, object, str] | None:
        if self.below is None and self.stays_above is None and not self.falls:
            return (
                "series",
                self.series,
                "needs one of `below: NUMBER`, `falls: true`, `stays_above: NUMBER`",
            )
        if (self.below is None) != (self.by_round == 0):
            return "below", self.below, "and by_round go together: below: NUMBER, by_round: ROUND"
        if self.by_round < 0:
            return "by_round", self.by_round, "must be at least 1"
        return None


@dataclass(frozen=True)
class Alike(Term):
    """Two rows are equivalent: their difference lies within a margin (two one-sided tests, Schuirmann 1987)."""

    alike: tuple[str, ...]
    """Two rows."""
    within: float
    """Points."""
    metric: str = ""
    selection: str = ""

    @property
    def rows(self) -> tuple[str, ...]:
        return self.alike

    def problem(self, columns: tuple[str, ...]) -> tuple[str, object, str] | None:
        if len(self.alike) != 2 or len(set(self.alike)) != 2:
            return "alike", list(self.alike), "must be two rows"
        if self.within <= 0:
            return "within", self.within, "must be above 0"
        return None


@dataclass(frozen=True)
class Partition(Term):
    """Facts of a partition, which needs no training: by column `FACT >= NUMBER` or `FACT <= NUMBER`."""

    partition: Mapping[str, str]

    def problem(self, columns: tuple[str, ...]) -> tuple[str, object, str] | None:
        if not self.partition:
            return "partition", "", "must name a fact by column"
        for column, fact in self.partition.items():
            if column not in columns:
                return "partition", column, f"is no column; columns are {', '.join(columns)}"
            if FACT.fullmatch(fact) is None:
                rule = (
                    f"must be FACT >= NUMBER or FACT <= NUMBER, the fact one of {', '.join(FACTS)}"
                )
                return f"partition: {column}", fact, rule
        return None


@dataclass(frozen=True)
class HeldBy(Term):
    """An equation, which a test of this repository checks."""

    held_by: str
    """tests/FILE.py::TEST."""

    def problem(self, columns: tuple[str, ...]) -> tuple[str, object, str] | None:
        if TEST_NAME.fullmatch(self.held_by) is None:
            return "held_by", self.held_by, "must be tests/FILE.py::TEST"
        return None


FORMS: dict[str, type[Term]] = {
    "trend": Trend,
    "gap": Gap,
    "peak": Peak,
    "knee": Knee,
    "series": Series,
    "alike": Alike,
    "partition": Partition,
    "held_by": HeldBy,
    "better": Better,
}
"""By the key that only this form has, in the order in which they are looked for."""


def direction_problem(key: str, direction: str) -> tuple[str, object, str] | None:
    """Return what is wrong with the direction of a trend."""
    if direction in ("rises", "falls"):
        return None
    return key, direction, "must be rises or falls"


def too_few(columns: tuple[str, ...]) -> tuple[str, object, str] | None:
    """Return what is wrong with the columns of a trend or a peak."""
    if len(columns) >= 2:
        return None
    return "columns", list(columns), "must be two or more"


def sign_problem(term: Trend) -> tuple[str, object, str] | None:
    """Return what is wrong with a trend's slack."""
    return ("slack", term.slack, "must be 0 or more") if term.slack < 0 else None


@dataclass(frozen=True)
class Statement:
    """One sentence of a paper, where it is measured, and what decides it."""

    name: str
    paper: str
    """Where it stands: FedShift, Table 1."""
    says: str
    test: Term
    number: str = ""
    """The paper's number, as text."""
    source: Location | None = None
    """The entry at the paper's own scale; `from` in the file."""
    here: Location | None = None
    """The entry for a laptop."""
    lost: str = ""
    """What the laptop's entry gives up, in a sentence."""
    needs: tuple[str, ...] = ()
    """The data sets of the laptop's entry."""

    @property
    def short_paper(self) -> str:
        """The paper's name."""
        return self.paper.partition(",")[0]

    def location(self, size: str) -> Location | None:
        """Return where it is measured at a size: smoke, laptop or full."""
        return self.source if size == "full" else self.here


def load_statements(path: Path | None = None) -> dict[str, Statement]:
    """Return the statements of a file, by default the shipped one, by their names. Raises as `statements_of` does."""
    file = path or FILE
    return statements_of(entries_of(file).get(STATEMENTS, {}), load_experiments(file), file.name)


def statements_of(
    entries: Mapping[str, Any] | None, experiments: Mapping[str, Experiment], file: str
) -> dict[str, Statement]:
    """Return the statements of a file by their names.

    Args:
        entries: What the file has under `statements`.
        experiments: The file's experiments by their names.
        file: What an error calls the file.

    Raises:
        SettingError: A statement has an unknown key, row, column, metric or entry, a form of the grammar lacks a part,
            or `lost` is missing where the laptop's entry is not the paper's.
    """
    if not isinstance(entries, Mapping):
        raise SettingError("statements", shown(entries), "must be names with keys", where=file)
    statements = {}
    for name, entry in entries.items():
        where = f"{file}: statements: {name}"
        if not isinstance(entry, dict) or not all(isinstance(key, str) for key in entry):
            raise SettingError(str(name), shown(entry), "must be keys with values", where=file)
        statements[str(name)] = statement(str(name), entry, experiments, where)
    return statements


def statement(
    name: str, entry: Mapping[str, Any], experiments: Mapping[str, Experiment], where: str
) -> Statement:
    """Return one statement. Raises SettingError as `statements_of` does."""
    entry = dict(entry)
    if "source" in entry:
        raise SettingError(
            "source", shown(entry["source"]), "is no key; it is called from", where=where
        )
    for key, field_name in (("from", "source"), ("here", "here")):
        if key in entry:
            entry[field_name] = location_of(entry.pop(key), f"{where}: {key}")
    if "test" in entry:
        entry["test"] = term_of(entry["test"], f"{where}: test")
    read: Statement = built(Statement, where, {**entry, "name": name}, public={"source": "from"})

    if not isinstance(read.test, HeldBy):
        require(read.here is not None, f"{where}: here", "", "is missing: write `here: ENTRY`")
        require(read.source is not None, f"{where}: from", "", "is missing: write `from: ENTRY`")
    for key, location in (("from", read.source), ("here", read.here)):
        if location is not None:
            refuse_unknown(read.test, location, experiments, f"{where}: {key}")
    if read.here is not None and read.source is not None:
        smaller = read.here.entry != read.source.entry
        rule = f"is missing: say what {read.here.entry} gives up beside {read.source.entry}"
        require(bool(read.lost) or not smaller, f"{where}: lost", read.lost, rule)
    return read


def location_of(entry: Any, where: str) -> Location:
    """Return a place from ENTRY, or from {entry, columns}."""
    if isinstance(entry, str):
        return Location(entry)
    if not isinstance(entry, dict):
        raise SettingError("entry", shown(entry), "must be ENTRY or {entry, columns}", where=where)
    return built(Location, where, entry)  # type: ignore[no-any-return]


def term_of(entry: Any, where: str) -> Term:
    """Return a form of the grammar from its keys."""
    if isinstance(entry, dict):
        for key, form in FORMS.items():
            if key in entry:
                return built(form, where, entry)  # type: ignore[no-any-return]
    rule = f"must be keys with values, one of them of {', '.join(FORMS)}"
    raise SettingError("test", shown(entry), rule, where=where)


def refuse_unknown(
    term: Term, location: Location, experiments: Mapping[str, Experiment], where: str
) -> None:
    """Raise SettingError for an entry, a column, a row, a metric or a selection that there is none of."""
    known = f"is no entry; entries are {', '.join(experiments)}"
    require(location.entry in experiments, where, location.entry, known)
    experiment = experiments[location.entry]
    for column in location.columns:
        rule = f"is no column of {location.entry}; columns are {', '.join(experiment.columns)}"
        require(column in experiment.columns, f"{where}: columns", column, rule)
    labels = [row.label for row in experiment.rows]
    for row in term.rows:
        rule = f"is no row of {location.entry}; rows are {', '.join(labels)}"
        require(row in labels, f"{where}: test", row, rule)
    if wrong := term.problem(location.columns_of(experiment)):
        key, value, rule = wrong
        raise SettingError(key, shown(value), rule, where=f"{where}: test")
    for key in ("metric", "series"):
        metric = getattr(term, key, "")
        if metric:
            refuse_unknown_metric(metric, f"{where}: test: {key}")
    selection = getattr(term, "selection", "")
    rule = f"must be one of {', '.join(SELECTIONS)}"
    require(selection in ("", *SELECTIONS), f"{where}: test: selection", selection, rule)


def refuse_unknown_metric(metric: str, where: str) -> None:
    """Raise SettingError for a number that no record has."""
    name, _, statistic = metric.partition(".")
    number, _, group = name.rpartition("-")
    of_a_group = number in BY_SHOT_GROUP and group in ("many", "medium", "few")
    if statistic:  # such as accuracy.mean, over the clients
        is_recorded = name in OVER_CLIENTS
    else:
        is_recorded = name in NUMBERS or of_a_group

    of_clients = [f"{number}.mean" for number in OVER_CLIENTS]
    of_groups = [f"{number}-few" for number in BY_SHOT_GROUP]
    listed = ", ".join([*NUMBERS, *of_groups, *of_clients])
    require(is_recorded, where, metric, f"is no number of a record; known are {listed}")
