"""Named experiments: experiments.yaml, read strictly. What runs they stand for is in plan.py."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from data import SettingError, require
from server_app.settings import Scalar

FILE = Path(__file__).resolve().parent.parent.parent / "experiments.yaml"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, where PyYAML has it, is ten times as fast
SELECTIONS = ("last", "best-test", "best-validation", "mean-of-last-5", "mean-of-last-10")
Settings = Mapping[str, Scalar]


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
    """A number of a run's record, a dot before a number's part: client-accuracy.worst, client-accuracy.values.0."""
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
    unjudged: tuple[str, ...] = ()
    """What the paper says besides and no claim can express; the report lists it as not judged."""

    def __post_init__(self) -> None:
        where = f"experiments.yaml: {self.name}"
        labels = [row.label for row in self.rows]
        require(len(set(labels)) == len(labels), f"{where}: methods", labels, "name a row twice")
        require(len(self.seeds) > 0, f"{where}: seeds", list(self.seeds), "must name at least one")
        known = f"must be one of {', '.join(SELECTIONS)}"
        for selection in (self.selection, *(claim.selection or self.selection for claim in self.claims)):
            require(selection in SELECTIONS, f"{where}: selection", selection, known)
        if self.reaches:
            rule = f"is no row; rows are {', '.join(labels)}"
            require(self.reaches in labels, f"{where}: reaches", self.reaches, rule)
        for column in self.metrics:
            rule = f"is no column; columns are {', '.join(self.columns)}"
            require(column in self.columns, f"{where}: metrics", column, rule)
        for label, cells in self.cells.items():
            require(label in labels, f"{where}: cells", label, f"is no row; rows are {', '.join(labels)}")
            rule = f"must have one number a column ({len(self.columns)})"
            require(len(cells) == len(self.columns), f"{where}: cells: {label}", list(cells), rule)
        for note in self.notes:
            label, _, column = note.partition(", ")
            holds = label in labels and (not column or column in self.columns)
            require(holds, f"{where}: notes", note, "must be `ROW` or `ROW, COLUMN`")
        for claim in self.claims:
            for label in (claim.better, claim.than):
                require(label in labels, f"{where}: claims", label, f"is no row; rows are {', '.join(labels)}")
            for column in claim.columns:
                rule = f"is no column; columns are {', '.join(self.columns)}"
                require(column in self.columns, f"{where}: claims", column, rule)
            number, most = claim.in_columns, len(claim.columns or self.columns)
            require(0 <= number <= most, f"{where}: claims: in_columns", number, f"must be 0 to {most}, its columns")

    def metric_of(self, column: str) -> str:
        """Return the number of a run's record that the column shows."""
        return self.metrics.get(column, self.metric)


@dataclass(frozen=True)
class Suite:
    """Several experiments under one name."""

    name: str
    title: str
    experiments: tuple[str, ...]


def load_experiments(path: Path = FILE) -> dict[str, Experiment]:
    """Return the experiments of a file by their names. Raises SettingError for keys that mean nothing."""
    return {name: experiment(name, entry) for name, entry in entries_of(path).items() if "experiments" not in entry}


def load_suites(path: Path = FILE) -> dict[str, Suite]:
    """Return the suites of a file by their names. Raises SettingError for one of other than known experiments."""
    entries = entries_of(path)
    suites = {}
    for name, entry in entries.items():
        if "experiments" not in entry:
            continue
        for member in entry["experiments"]:
            known = member in entries and "experiments" not in entries[member]
            require(known, f"experiments.yaml: {name}: experiments", member, "is no experiment")
        suites[name] = checked(Suite, name, {**entry, "experiments": tuple(entry["experiments"]), "name": name})
    return suites


def entries_of(path: Path) -> dict[str, Mapping[str, Any]]:
    """Return the entries of a file by their names, without those that only lend settings."""
    try:
        entries = yaml.load(path.read_text(), LOADER)
    except yaml.YAMLError as error:
        raise SettingError("experiments", str(path), f"is not YAML: {' '.join(str(error).split())}") from error
    return {name: entry for name, entry in entries.items() if not name.startswith(".")}


def experiment(name: str, entry: Mapping[str, Any]) -> Experiment:
    """Return one entry of the file as an experiment."""
    entry = dict(entry)
    rows = tuple(row(name, method) for method in entry.pop("methods"))
    claims = tuple(checked(Claim, f"{name}: claims", claim) for claim in entry.pop("claims", ()))
    for key, kind in (("seeds", tuple), ("series", tuple), ("unjudged", tuple)):
        if key in entry:
            entry[key] = kind(entry[key])
    if "columns" in entry:
        entry["columns"] = {str(label): settings or {} for label, settings in entry["columns"].items()}
    entry["cells"] = {label: tuple(cells) for label, cells in entry.get("cells", {}).items()}
    entry |= {"name": name, "rows": rows, "claims": claims}
    checked_entry: Experiment = checked(Experiment, name, entry, public={"rows": "methods"})
    return checked_entry


def row(name: str, entry: str | Mapping[str, Any]) -> Row:
    """Return a row from METHOD, or from LABEL: {method, deployed, settings}; the method is the label where left out."""
    if isinstance(entry, str):
        return Row(entry, entry)
    if len(entry) != 1:
        raise SettingError(f"experiments.yaml: {name}: methods", dict(entry), "must be METHOD or LABEL: {settings}")
    ((label, settings),) = entry.items()
    settings = dict(settings)
    method, deployed = settings.pop("method", label), settings.pop("deployed", "")
    return Row(label, method, settings, deployed)


def checked(kind: type, where: str, entry: Mapping[str, Any], public: Mapping[str, str] | None = None) -> Any:
    """Return `kind(**entry)`. Raises SettingError for a key that it does not have, or one it needs and lacks."""
    names = list(kind.__dataclass_fields__)  # type: ignore[attr-defined]
    known = sorted({(public or {}).get(name, name) for name in names} - {"name"})
    if unknown := sorted(entry.keys() - set(names)):
        raise SettingError(f"experiments.yaml: {where}", unknown[0], f"is no key; known are {', '.join(known)}")
    if "columns" in entry and isinstance(entry["columns"], list):
        entry = {**entry, "columns": tuple(map(str, entry["columns"]))}
    try:
        return kind(**entry)
    except TypeError as error:
        raise SettingError(f"experiments.yaml: {where}", sorted(entry), str(error).partition("() ")[2]) from error


def listed() -> dict[str, str]:
    """Return the title of every experiment and suite by its name."""
    return {name: entry.title for name, entry in (load_experiments() | load_suites()).items()}


def find_all(names: Sequence[str]) -> list[Experiment]:
    """Return the experiments of those names, each once; a suite's name stands for all of its.

    Raises SettingError with the nearest name when there is none.
    """
    known, suites = load_experiments(), load_suites()
    chosen: dict[str, Experiment] = {}
    for name in names:
        if name not in known and name not in suites:
            near = difflib.get_close_matches(name, [*known, *suites], 1)
            hint = f"did you mean {near[0]}" if near else f"known are {', '.join([*known, *suites])}"
            raise SettingError("experiment", name, f"is not in experiments.yaml; {hint}")
        chosen |= {member: known[member] for member in (suites[name].experiments if name in suites else [name])}
    return list(chosen.values())
