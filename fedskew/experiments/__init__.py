"""Named experiments: the shipped experiments.yaml and the user's own file, as dataclasses that pydantic checks.

plan.py makes their runs.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, model_validator
from pydantic.dataclasses import dataclass

from data import SettingError, require
from data.packages import ROOT
from fedskew.experiments.claims import (
    STRICT,
    Claim,
    Contrast,
    HeldBy,
    Label,
    Number,
    Truth,
    Whole,
    claim_of,
    require_known,
)
from fedskew.experiments.entries import (
    KEYS,
    LIST,
    checked_settings,
    defaults,
    entries_in_text,
    naming,
    read_as,
    shown,
    text_of,
)
from server_app.keys import SELECTIONS
from server_app.methods import Setting as Scalar

FILE = ROOT / "experiments.yaml"
NOT_TUNED = frozenset({"method", "seed", "results", "overwrite", "dataset"})
"""Settings that say which run it is, and not how it trains."""
Settings = Annotated[Mapping[str, Scalar], PlainValidator(checked_settings)]


@dataclass(frozen=True, config=STRICT)
class Row:
    """A row of an experiment's table: a method, with settings of its own."""

    label: Label
    method: str
    settings: Settings = field(default_factory=dict)
    deployed: str = ""
    """The model to read where a method deploys several, as in real-blocks-1; empty is the one of the method's name."""
    only: tuple[Label, ...] = ()
    """The columns that the row is in; empty is all."""
    seeds: tuple[Whole, ...] = ()
    """The seeds of the experiment's that the row has; empty is all."""


@dataclass(frozen=True, config=STRICT)
class Tune:
    """A setting whose value is chosen for each row and column, on a seed of its own, before the table is run."""

    key: str
    """The setting, as learning-rate."""
    values: tuple[Scalar, ...]
    """What is tried; of two values that are equally good the first is taken."""
    seed: Whole
    """The seed of the trials, which is none of the table's."""


@dataclass(frozen=True, config=STRICT)
class Edition:
    """The smaller entry that stands for a paper's table on a laptop."""

    entry: str
    lost: str = ""
    """What it gives up, in a sentence."""
    columns: Mapping[Label, Label] = field(default_factory=dict)
    """The edition's column by the paper's, of the columns that it has; empty is every column of the same name."""


@dataclass(frozen=True, config=STRICT)
class Experiment:
    """One table or figure: rows of methods, columns of settings, seeds, and the paper's own numbers and claims."""

    name: str
    title: str
    rows: Annotated[tuple[Row, ...], Field(min_length=1)]
    settings: Settings = field(default_factory=dict)
    columns: Annotated[Mapping[Label, Settings], Field(min_length=1)] = field(
        default_factory=lambda: {"": {}}
    )
    seeds: Annotated[tuple[Whole, ...], Field(min_length=1)] = (0,)
    paper: str = ""
    """Where the numbers stand: FedShift, Table 1."""
    metric: str = "balanced-accuracy"
    """A number of a run's record, a dot before a number's part: client-accuracy.worst, client-accuracy.mnist."""
    metrics: Mapping[Label, str] = field(default_factory=dict)
    """The columns that show another number of the record."""
    reaches: str = ""
    """A row: the table then gives the rounds until its accuracy is reached, in place of the metric."""
    selection: Literal[*SELECTIONS] = "last"  # type: ignore[valid-type]
    """Which round is compared with the paper's cell; reports give all."""
    cells: Mapping[Label, tuple[Number | None, ...]] = field(default_factory=dict)
    """The paper's numbers, in percent or in rounds: by row, one a column, None where it has none."""
    notes: Mapping[Label, str] = field(default_factory=dict)
    """Remarks on the paper's numbers, by `ROW` or `ROW, COLUMN`."""
    assumed: Settings = field(default_factory=dict)
    """Settings that the paper leaves open, as they are set here; `settings` and `columns` win over them."""
    series: tuple[str, ...] = ()
    """Numbers of a round's record that the figure shows over the rounds, beside the metric."""
    claims: tuple[Claim, ...] = ()
    """What the paper says of the rows, in the forms of claims.py."""
    here: Edition | None = None
    """The smaller edition of a paper's entry, on which its claims are measured on a laptop."""
    tune: Tune | None = None
    """A setting that every row gets in every column from trials on another seed."""

    @model_validator(mode="after")
    def check(self) -> "Experiment":
        """Raise SettingError for a label without row or column, and for whatever else contradicts itself."""
        rows = self.distinct_rows
        columns = tuple(self.columns)
        for key, names in (("methods", [row.label for row in self.rows]), ("seeds", self.seeds)):
            require(len(set(names)) == len(names), key, list(names), "must name each once")
        reached = [self.reaches] if self.reaches else []
        for key, labels in (("reaches", reached), ("cells", self.cells)):
            require_known(key, labels, "row", rows)
        require_known("metrics", self.metrics, "column", columns)
        for row in self.rows:
            require_known(f"methods: {row.label}: only", row.only, "column", columns)
        for label, cells in self.cells.items():
            rule = f"must have one number a column ({len(columns)})"
            require(len(cells) == len(columns), f"cells: {label}", list(cells), rule)
        for note in self.notes:
            label, _, column = note.partition(", ")
            is_known = label in rows and column in ("", *columns)
            require(is_known, "notes", note, "must be `ROW` or `ROW, COLUMN`")
        with naming("claims"):
            for claim in self.claims:
                claim.check(rows, columns)
                check_places(claim, self)
        if self.tune is not None:
            self.check_tune(self.tune)
        return self

    def check_tune(self, tune: Tune) -> None:
        """Raise SettingError for a setting that cannot be tuned, too few values, or a seed of the table."""
        is_setting = tune.key in defaults() or "." in tune.key
        is_tunable = is_setting and tune.key not in NOT_TUNED
        require(is_tunable, "tune: key", tune.key, "is no setting that can be tuned")
        values = list(tune.values)
        several = len(values) > 1 and len(set(values)) == len(values)
        require(several, "tune: values", values, "must be two or more, each once")
        rule = "must be none of the table's seeds"
        require(tune.seed not in self.seeds, "tune: seed", tune.seed, rule)
        stated = [*self.columns.values(), *(row.settings for row in self.rows)]
        is_alone = all(tune.key not in settings for settings in stated)
        require(is_alone, "tune: key", tune.key, "is stated by a row or a column as well")

    @property
    def distinct_rows(self) -> dict[str, tuple[str, Mapping[str, Scalar], str]]:
        """By label what tells a row from others: method, settings and the model that it reads."""
        return {row.label: (row.method, row.settings, row.deployed) for row in self.rows}

    def metric_of(self, column: str) -> str:
        """Return the number of a run's record that the column shows."""
        return self.metrics.get(column, self.metric)

    @property
    def measured_in(self) -> str:
        """The entry on which its claims are measured on a laptop."""
        return self.name if self.here is None else self.here.entry


@dataclass(frozen=True, config=STRICT)
class Suite:
    """Several experiments under one name."""

    name: str
    title: str
    experiments: tuple[str, ...] = ()
    papers: Truth = False
    """Whether it is what the claims of the file's papers need on a laptop, before its own experiments."""


def experiment(name: str, entry: Mapping[str, Any]) -> Experiment:
    """Return one entry of the file as an experiment. Raises SettingError."""
    with naming(name):
        known = {**entry, "name": name}
        for key, field_name, read in (("methods", "rows", row_of), ("claims", "claims", claim_of)):
            if key in known and not isinstance(known[key], list):
                raise SettingError(key, shown(known[key]), LIST)
            if key in known:
                known[field_name] = tuple(map(read, known.pop(key)))
        entry_as_read: Experiment = read_as(Experiment, known)
    return entry_as_read


def row_of(entry: object) -> Row:
    """Return a row from METHOD, or from LABEL: {method, deployed, settings}; the method is the label where left out."""
    if isinstance(entry, Row):
        return entry
    named = {entry: None} if isinstance(entry, str) else entry
    if not isinstance(named, dict) or len(named) != 1:
        raise SettingError("methods", shown(entry), "must be METHOD or LABEL: {settings}")
    ((label, values),) = named.items()
    with naming(f"methods: {label}"):
        if not isinstance(values, dict | None):
            raise SettingError(str(label), shown(values), KEYS)
        own = {"method": str(label), **(values or {})}
        keys = ("method", "deployed", "only", "seeds")
        fields = {key: own.pop(key) for key in keys if key in own}
        row: Row = read_as(Row, {"label": label, **fields})
        return replace(row, settings=checked_settings(own))


def entries_in(path: Path) -> dict[str, Experiment | Suite]:
    """Return the experiments of a file by their names, then its suites. Raises SettingError for a mistake in it."""
    return dict(_entries_in_text(text_of(path), path))


@lru_cache(maxsize=4)
def _entries_in_text(text: str, path: Path) -> dict[str, Experiment | Suite]:
    """Return what `entries_in` does: a command asks for a file's entries up to four times."""
    experiments: dict[str, Experiment] = {}
    suites: dict[str, Suite] = {}
    entries = entries_in_text(text, path)
    with naming(path.name):
        for name, entry in entries.items():
            if not isinstance(entry, dict):
                raise SettingError(name, shown(entry), KEYS)
            if not entry.keys() & {"experiments", "papers"}:
                experiments[name] = experiment(name, entry)
        for read in experiments.values():
            check_edition(read, experiments)
        for name, entry in entries.items():
            if name not in experiments:
                suites[name] = suite(name, entry, experiments)
    return {**experiments, **suites}


def check_edition(paper: Experiment, experiments: Mapping[str, Experiment]) -> None:
    """Raise SettingError for a smaller edition that is none, or on which a claim cannot be measured."""
    if paper.here is None:
        return
    with naming(f"{paper.name}: here"):
        edition = experiments.get(paper.here.entry)
        if edition is None:
            raise SettingError("entry", paper.here.entry, "is no experiment")
        require_known("columns", paper.here.columns.values(), "column", edition.columns)
        for claim in paper.claims:
            measured = claim_of_edition(claim, paper, edition)
            rule = f"has none for the claim: {claim.says}"
            require(bool(measured.columns), "columns", edition.name, rule)
            measured.check(edition.distinct_rows, measured.columns)
            check_places(measured, edition)


def check_places(claim: Claim, entry: Experiment) -> None:
    """Raise SettingError where a row of the claim is not in all of its columns: it would never be measured."""
    columns = claim.columns or tuple(entry.columns)
    for row in entry.rows:
        absent = sorted({*columns}.difference(row.only or columns))
        rule = f"has no row {row.label} there, for the claim: {claim.says}"
        is_there = not absent or row.label not in claim.rows
        require(is_there, "columns", ", ".join(absent), rule)


def claim_of_edition(claim: Claim, paper: Experiment, edition: Experiment) -> Claim:
    """Return a paper's claim about the columns of the entry in which it is measured, in the claim's order."""
    if paper.here is None or edition.name == paper.name:
        return claim
    names = paper.here.columns or {column: column for column in edition.columns}
    of_claim = claim.columns or tuple(paper.columns)
    columns = tuple(names[column] for column in of_claim if column in names)
    if isinstance(claim, Contrast):
        return replace(claim, columns=columns, peak=names.get(claim.peak, claim.peak))
    return replace(claim, columns=columns)


def suite(name: str, entry: Mapping[str, Any], experiments: Mapping[str, Experiment]) -> Suite:
    """Return one entry of the file as a suite of experiments. Raises SettingError."""
    with naming(name):
        as_read: Suite = read_as(Suite, {**entry, "name": name})
        for member in as_read.experiments:
            # A suite of suites is refused: two could name each other.
            require(member in experiments, "experiments", member, "is no experiment")
    if not as_read.papers:
        return as_read
    measured = []
    for one in experiments.values():
        needs_runs = any(not isinstance(claim, HeldBy) for claim in one.claims)
        if one.paper and needs_runs:
            measured.append(one.measured_in)
    return replace(as_read, experiments=tuple(dict.fromkeys([*measured, *as_read.experiments])))


# ---- names -----------------------------------------------------------------------------------------------------------


def known_entries(file: Path | None = None) -> dict[str, Experiment | Suite]:
    """Return all experiments and suites by their names; those of the user's file replace shipped ones."""
    return entries_in(FILE) | (entries_in(file) if file else {})


def file_of_suite(suite: str, file: Path | None = None) -> Path:
    """Return the file whose papers a suite is about: the user's where it has the suite, else the shipped one."""
    return file if file is not None and suite in entries_in(file) else FILE


def papers_suite(names: Sequence[str], file: Path | None = None) -> Suite | None:
    """Return the suite of papers that a command names, as papers; None where it names none.

    Raises SettingError where it names anything beside such a suite: its claims are those of a whole file.
    """
    known = known_entries(file)
    for name in names:
        entry = known.get(name)
        if isinstance(entry, Suite) and entry.papers:
            rule = f"does not go with others: {name} stands for a whole file's papers"
            require(len(names) == 1, "experiment", ", ".join(names), rule)
            return entry
    return None


def find_all(names: Sequence[str], file: Path | None = None) -> list[Experiment]:
    """Return the experiments of those names, each once; a suite's name stands for all of its experiments.

    Raises:
        SettingError: there is no such experiment; the remedy is the nearest name.
    """
    known = known_entries(file)
    chosen: dict[str, Experiment] = {}
    for name in names:
        entry = known.get(name)
        if entry is None:
            files = " or ".join(dict.fromkeys([(file or FILE).name, FILE.name]))
            similar = difflib.get_close_matches(name, known, 1)
            remedy = (
                f"did you mean {similar[0]}?" if similar else "`fedskew list experiments` has all"
            )
            raise SettingError("experiment", name, f"is not in {files}", remedy=remedy)
        for member in entry.experiments if isinstance(entry, Suite) else (name,):
            experiment = known[member]
            if not isinstance(experiment, Experiment):  # a user's suite has the name of one
                raise SettingError("experiments", member, "is no experiment", where=name)
            chosen[member] = experiment
    return list(chosen.values())
