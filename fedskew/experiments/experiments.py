"""Named experiments: experiments.yaml, read strictly. plan.py makes their runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from data import SettingError, require
from data.errors import shortened
from data.package_files import ROOT
from fedskew.experiments.entries import (
    Settings,
    built,
    defaults,
    entries_in_text,
    label_of,
    naming,
    no_list,
    of_kind,
    read_as,
    shown,
    text_of,
)
from server_app.keys import SELECTIONS, no_such
from server_app.methods import Setting as Scalar

FILE = ROOT / "experiments.yaml"
SMOKE = "-smoke"
"""How the name of an entry at its smallest size ends."""
SIZES = ("smoke", "laptop", "full")
NOT_TUNED = frozenset({"method", "seed", "results", "overwrite", "dataset"})
"""Settings that say which run it is, and not how it trains."""
STATEMENTS = "statements"
"""The key of a file that holds what papers say; it is no entry."""


@dataclass(frozen=True)
class Row:
    """A row of an experiment's table: a method, with settings of its own."""

    label: str
    method: str
    settings: Settings = field(default_factory=dict)
    deployed: str = ""
    """The model to read where a method deploys several, as in tau-norm-0.5; empty is the one of the method's name."""


@dataclass(frozen=True)
class Claim:
    """What the paper says of two rows: `better` is above `than` by at least `by`, or reaches its accuracy `sooner`."""

    says: str
    better: str
    than: str
    by: float = 0.0
    """Percentage points that the difference must exceed; a negative number claims no more than a small loss."""
    sooner: bool = False
    """Whether the claim is about the rounds needed for the final accuracy of `than`."""
    columns: tuple[str, ...] = ()
    """Where the claim is made; empty is everywhere."""
    in_columns: int = 0
    """In how many of these columns it must hold; 0 is in all."""
    metric: str = ""
    """Empty is the experiment's."""
    selection: str = ""
    """Empty is the experiment's."""
    expected: bool = True
    """Whether the claim should hold at the experiment's scale; where it need not, `why` says so."""
    why: str = ""


@dataclass(frozen=True)
class Tune:
    """A setting whose value is chosen for each row and column, on a seed of its own, before the table is run."""

    key: str
    """The setting, as learning-rate."""
    values: tuple[Scalar, ...]
    """What is tried; of two values that are equally good the first is taken."""
    seed: int
    """The seed of the trials, which is none of the table's."""


@dataclass(frozen=True)
class Experiment:
    """One table or figure: rows of methods, columns of settings, seeds, and the paper's own numbers and claims."""

    name: str
    title: str
    rows: tuple[Row, ...]
    settings: Settings = field(default_factory=dict)
    columns: Mapping[str, Settings] = field(default_factory=lambda: {"": {}})
    seeds: tuple[int, ...] = (0,)
    paper: str = ""
    """Where the numbers stand: FedShift, Table 1."""
    metric: str = "balanced-accuracy"
    """A number of a run's record, a dot before a number's part: client-accuracy.worst, client-accuracy.mnist."""
    metrics: Mapping[str, str] = field(default_factory=dict)
    """The columns that show another number of the record."""
    reaches: str = ""
    """A row: the table then gives the rounds until its accuracy is reached, in place of the metric."""
    selection: str = "last"
    """Which round is compared with the paper's cell; reports give all."""
    cells: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """The paper's numbers, in percent or in rounds: by row, one a column, None where it has none."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Remarks on the paper's numbers, by `ROW` or `ROW, COLUMN`."""
    assumed: Settings = field(default_factory=dict)
    """Settings that the paper leaves open, as they are set here; `settings` and `columns` win over them."""
    series: tuple[str, ...] = ()
    """Numbers of a round's record that the figure shows over the rounds, beside the metric."""
    claims: tuple[Claim, ...] = ()
    tune: Tune | None = None
    """A setting that every row gets in every column from trials on another seed."""
    same_model: tuple[str, ...] = ()
    """Rows whose model must be the same to the bit in every column and seed: heads in closed form."""
    unjudged: tuple[str, ...] = ()
    """What the paper says besides and no claim can express; the report lists it as not judged."""
    smoke: Settings = field(default_factory=dict)
    """Settings that make the entry a matter of seconds: `NAME-smoke` is the entry with them in force, of one seed."""
    smoke_metrics: Mapping[str, str] = field(default_factory=dict)
    """In place of `metrics`, where the smaller data set has other clients."""

    def __post_init__(self) -> None:
        """Raise SettingError for a label without row or column, and for whatever else contradicts itself."""
        self.check_names()
        if self.reaches:
            self.require_row("reaches", self.reaches)
        for label in self.same_model:
            self.require_row("same_model", label)
        for label in self.metrics:
            self.require_column("metrics", label)
        for label in self.smoke_metrics:
            self.require_column("smoke_metrics", label)
        columns = len(self.columns)
        for label, cells in self.cells.items():
            self.require_row("cells", label)
            rule = f"must have one number a column ({columns})"
            require(len(cells) == columns, f"{self.name}: cells: {label}", list(cells), rule)
        labels = [row.label for row in self.rows]
        for note in self.notes:
            label, _, column = note.partition(", ")
            is_known = label in labels and (not column or column in self.columns)
            require(is_known, f"{self.name}: notes", note, "must be `ROW` or `ROW, COLUMN`")
        for claim in self.claims:
            self.check_claim(claim)
        if self.tune is not None:
            self.check_tune(self.tune)

    def require_row(self, key: str, label: str) -> None:
        """Raise SettingError for a label that no row has."""
        labels = [row.label for row in self.rows]
        rule = f"is no row; rows are {shortened(', '.join(labels))}"
        require(label in labels, f"{self.name}: {key}", label, rule)

    def require_column(self, key: str, label: str) -> None:
        """Raise SettingError for a label that no column has."""
        rule = f"is no column; columns are {shortened(', '.join(self.columns))}"
        require(label in self.columns, f"{self.name}: {key}", label, rule)

    def check_names(self) -> None:
        """Raise SettingError unless rows, columns and seeds are named, each once, and selections exist."""
        where = self.name
        labels = [row.label for row in self.rows]
        each_once = len(set(labels)) == len(labels)
        require(each_once, f"{where}: methods", labels, "name a row twice")
        require(len(labels) > 0, f"{where}: methods", labels, "must name at least one")

        rule = "must name at least one, where there are any"
        require(len(self.columns) > 0, f"{where}: columns", [], rule)

        seeds = list(self.seeds)
        each_once = len(set(seeds)) == len(seeds)
        require(each_once, f"{where}: seeds", seeds, "name a seed twice")
        require(len(seeds) > 0, f"{where}: seeds", seeds, "must name at least one")

        selections = [self.selection]
        selections += [claim.selection or self.selection for claim in self.claims]
        rule = f"must be one of {', '.join(SELECTIONS)}"
        for selection in selections:
            require(selection in SELECTIONS, f"{where}: selection", selection, rule)

    def check_claim(self, claim: Claim) -> None:
        """Raise SettingError for a claim about unknown rows or columns, or that compares a row with itself."""
        self.require_row("claims", claim.better)
        self.require_row("claims", claim.than)
        for label in claim.columns:
            self.require_column("claims", label)
        number = claim.in_columns
        most = len(claim.columns or self.columns)
        rule = f"must be 0 to {most}, its columns"
        require(0 <= number <= most, f"{self.name}: claims: in_columns", number, rule)

        unlabeled = {row.label: replace(row, label="") for row in self.rows}
        rule = (
            f"must be another row than {claim.better!r}, of another method or settings: "
            "a row is never better than itself"
        )
        differ = unlabeled[claim.better] != unlabeled[claim.than]
        require(differ, f"{self.name}: claims: than", claim.than, rule)

    def check_tune(self, tune: Tune) -> None:
        """Raise SettingError for a setting that cannot be tuned, too few values, or a seed of the table."""
        where = f"{self.name}: tune"
        known = defaults()
        is_setting = tune.key in known or "." in tune.key
        is_tunable = is_setting and tune.key not in NOT_TUNED
        require(is_tunable, f"{where}: key", tune.key, "is no setting that can be tuned")
        values = list(tune.values)
        distinct = len(set(values)) == len(values)
        require(
            len(values) > 1 and distinct,
            f"{where}: values",
            values,
            "must be two or more, each once",
        )
        for value in values:
            if tune.key in known:
                of_kind(f"{where}: values", tune.key, value, type(known[tune.key]))
        rule = f"must be none of the table's seeds ({shortened(', '.join(map(str, self.seeds)))})"
        require(tune.seed not in self.seeds, f"{where}: seed", tune.seed, rule)

        tables = {f"columns: {name}": settings for name, settings in self.columns.items()}
        tables |= {f"methods: {row.label}": row.settings for row in self.rows}
        for table, settings in tables.items():
            rule = "is tuned: a row or a column cannot state it as well"
            require(
                tune.key not in settings,
                f"{self.name}: {table}: {tune.key}",
                settings.get(tune.key),
                rule,
            )

    def metric_of(self, column: str) -> str:
        """Return the number of a run's record that the column shows."""
        return self.metrics.get(column, self.metric)

    @property
    def smoke_size(self) -> "Experiment":
        """Return the entry with its `smoke` settings in force in every row and column, and one seed."""
        kept = {column: without(settings, self.smoke) for column, settings in self.columns.items()}
        rows = [replace(row, settings=without(row.settings, self.smoke)) for row in self.rows]
        return replace(
            self,
            name=f"{self.name}{SMOKE}",
            settings={**without(self.settings, self.smoke), **self.smoke},
            assumed=without(self.assumed, self.smoke),
            columns=kept,
            rows=tuple(rows),
            metrics={**self.metrics, **self.smoke_metrics},
            seeds=self.seeds[:1],
            claims=(),
            tune=None if self.tune is None or self.tune.key in self.smoke else self.tune,
        )


@dataclass(frozen=True)
class Suite:
    """Several experiments under one name."""

    name: str
    title: str
    experiments: tuple[str, ...]
    size: str = ""
    """smoke, laptop or full: the suite runs what the file's statements need at that size. Empty is an ordinary one."""

    @property
    def members(self) -> tuple[str, ...]:
        """Return the names of its experiments at its size."""
        if self.size == "smoke":
            return tuple(f"{name}{SMOKE}" for name in self.experiments)
        return self.experiments


def without(settings: Settings, others: Settings) -> dict[str, Scalar]:
    """Return the settings without the keys of others."""
    return {key: value for key, value in settings.items() if key not in others}


def load_experiments(path: Path | None = None) -> dict[str, Experiment]:
    """Return the experiments of a file by their names. Raises SettingError for whatever they cannot mean."""
    entries = entries_in(path or FILE).items()
    return {name: entry for name, entry in entries if isinstance(entry, Experiment)}


def load_suites(path: Path | None = None) -> dict[str, Suite]:
    """Return the suites of a file by their names. Raises SettingError for one of other than known experiments."""
    entries = entries_in(path or FILE).items()
    return {name: entry for name, entry in entries if isinstance(entry, Suite)}


def suite(name: str, entry: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]) -> Suite:
    """Return one entry of the file as a suite of other ones."""
    built_suite: Suite = built(Suite, name, {**entry, "name": name})
    for member in built_suite.experiments:
        # A suite of suites is refused: two could name each other.
        is_experiment = member in entries and "experiments" not in entries[member]
        require(is_experiment, f"{name}: experiments", member, "is no experiment")
    if "size" in entry:
        size = built_suite.size
        rule = f"must be one of {', '.join(SIZES)}"
        require(size in SIZES, f"{name}: size", size, rule)
    return built_suite


def experiment(name: str, entry: Mapping[str, Any]) -> Experiment:
    """Return one entry of the file as an experiment."""
    entry = {**entry, "name": name}
    if "claims" in entry:
        entry["claims"] = claims_of(name, entry["claims"])
    if "tune" in entry:
        entry["tune"] = tune_of(name, entry["tune"])
    if "methods" in entry:
        methods = entry.pop("methods")
        if not isinstance(methods, list):
            raise no_list(name, "methods", methods)
        entry["rows"] = tuple(row(name, method) for method in methods)
    entry_as_read: Experiment = built(Experiment, name, entry, public={"rows": "methods"})
    refuse_wrong_settings(entry_as_read)
    refuse_repeated_methods(entry_as_read)
    return entry_as_read


def refuse_wrong_settings(experiment: Experiment) -> None:
    """Raise SettingError for a setting that there is none of, or one of another type, with where it stands.

    Settings of a section may be those of a method of the user's own, which is not loaded yet.
    """
    known = defaults()
    tables: dict[str, Settings] = {"settings": experiment.settings, "assumed": experiment.assumed}
    for name, settings in experiment.columns.items():
        tables[f"columns: {name}"] = settings
    for row in experiment.rows:
        tables[f"methods: {row.label}"] = row.settings
    tables["smoke"] = experiment.smoke
    for table, settings in tables.items():
        where = f"{experiment.name}: {table}"
        for key, value in settings.items():
            if key in known:
                of_kind(where, key, value, type(known[key]))
            elif "." not in key:
                raise no_such(key, value, known).within(where)


def refuse_repeated_methods(experiment: Experiment) -> None:
    """Raise SettingError for a row that names a method twice (`fedavg+fedavg`), with where it stands."""
    for row in experiment.rows:
        names = [name.strip() for name in row.method.split("+")]
        if len(set(names)) < len(names):
            where = f"{experiment.name}: methods: {row.label}"
            rule = "names a method twice"
            once = "+".join(dict.fromkeys(names))
            raise SettingError("method", row.method, rule, where=where, remedy=f"write {once}")


def tune_of(name: str, tune: Any) -> Tune:
    """Return what an entry tunes."""
    if not isinstance(tune, dict) or not all(isinstance(key, str) for key in tune):
        rule = "must be {key: SETTING, values: [..., ...], seed: NUMBER}"
        raise SettingError("tune", shown(tune), rule, where=name)
    tune_as_read: Tune = built(Tune, f"{name}: tune", tune)
    return tune_as_read


def claims_of(name: str, claims: Any) -> tuple[Claim, ...]:
    """Return the claims of an entry."""
    where = f"{name}: claims"
    if not isinstance(claims, list):
        raise no_list(name, "claims", claims)
    for claim in claims:
        if not isinstance(claim, dict) or not all(isinstance(key, str) for key in claim):
            raise SettingError("claims", shown(claim), "must be keys with values", where=name)
    return tuple(built(Claim, where, claim) for claim in claims)


def row(name: str, entry: Any) -> Row:
    """Return a row from METHOD, or from LABEL: {method, deployed, settings}; the method is the label where left out."""
    where = f"{name}: methods"
    if isinstance(entry, str):
        return Row(entry, entry)
    if not isinstance(entry, dict) or len(entry) != 1:
        rule = "must be METHOD or LABEL: {settings}"
        raise SettingError("methods", shown(entry), rule, where=name)
    ((written, values),) = entry.items()
    label = label_of(name, "methods", written)
    settings: dict[str, Scalar] = read_as(Settings, values, name, f"methods: {label}")
    fields = {
        "label": label,
        "method": settings.pop("method", label),
        "deployed": settings.pop("deployed", ""),
        "settings": settings,
    }
    return built(Row, where, fields)  # type: ignore[no-any-return]


def entries_in(path: Path) -> dict[str, Experiment | Suite]:
    """Return the experiments of a file by their names, then its suites. Raises SettingError as they do."""
    return dict(_entries_in_text(text_of(path), path))


@lru_cache(maxsize=4)
def _entries_in_text(text: str, path: Path) -> dict[str, Experiment | Suite]:
    """Return what `entries_in` does: a command asks for a file's entries up to four times."""
    entries = entries_in_text(text, path)
    entries.pop(STATEMENTS, None)
    known: dict[str, Experiment | Suite] = {}
    with naming(path.name):
        for name, entry in entries.items():
            if "experiments" not in entry:
                known[name] = experiment(name, entry)
        for name, entry in entries.items():
            if "experiments" in entry:
                known[name] = suite(name, entry, entries)
    return known
