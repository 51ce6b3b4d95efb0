"""Named experiments: experiments.yaml, read strictly. plan.py makes their runs."""

import difflib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from data import SettingError, require
from data.package_files import ROOT
from data.renamed_settings import given
from fedskew.experiments.entries import (
    Settings,
    built,
    defaults,
    entries_of,
    label_of,
    naming,
    no_list,
    of_kind,
    read_as,
    shown,
)
from server_app.keys import SELECTIONS, no_such
from server_app.methods import Setting as Scalar

FILE = ROOT / "experiments.yaml"
log = logging.getLogger("fedskew")
SMOKE = "-smoke"
"""How the name of an entry at its smallest size ends."""
SIZES = ("smoke", "laptop", "full")
STATEMENTS = "statements"
"""The key of a file that holds what papers say; it is no entry."""
HERE = Path("experiments.yaml")
"""The user's own, in the working folder."""


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
    same_model: tuple[str, ...] = ()
    """Rows whose model must be the same to the bit in every column and seed: heads in closed form."""
    unjudged: tuple[str, ...] = ()
    """What the paper says besides and no claim can express; the report lists it as not judged."""
    smoke: Settings = field(default_factory=dict)
    """Settings that make the entry a matter of seconds: `NAME-smoke` is the entry with them in force, of one seed."""
    smoke_metrics: Mapping[str, str] = field(default_factory=dict)
    """In place of `metrics`, where the smaller data set has other clients."""

    def __post_init__(self) -> None:
        where = self.name
        labels = [row.label for row in self.rows]

        def row(key: str, label: str) -> None:
            require(
                label in labels,
                f"{where}: {key}",
                label,
                f"is no row; rows are {', '.join(labels)}",
            )

        def column(key: str, label: str) -> None:
            known = ", ".join(self.columns)
            require(
                label in self.columns,
                f"{where}: {key}",
                label,
                f"is no column; columns are {known}",
            )

        require(len(set(labels)) == len(labels), f"{where}: methods", labels, "name a row twice")
        require(len(labels) > 0, f"{where}: methods", labels, "must name at least one")
        require(
            len(self.columns) > 0,
            f"{where}: columns",
            [],
            "must name at least one, where there are any",
        )
        require(
            len(set(self.seeds)) == len(self.seeds),
            f"{where}: seeds",
            list(self.seeds),
            "name a seed twice",
        )
        require(len(self.seeds) > 0, f"{where}: seeds", list(self.seeds), "must name at least one")
        known = f"must be one of {', '.join(SELECTIONS)}"
        for selection in (
            self.selection,
            *(claim.selection or self.selection for claim in self.claims),
        ):
            require(selection in SELECTIONS, f"{where}: selection", selection, known)
        if self.reaches:
            row("reaches", self.reaches)
        for label in self.same_model:
            row("same_model", label)
        for label in self.metrics:
            column("metrics", label)
        for label in self.smoke_metrics:
            column("smoke_metrics", label)
        for label, cells in self.cells.items():
            row("cells", label)
            rule = f"must have one number a column ({len(self.columns)})"
            require(len(cells) == len(self.columns), f"{where}: cells: {label}", list(cells), rule)
        for note in self.notes:
            label, _, beside = note.partition(", ")
            holds = label in labels and (not beside or beside in self.columns)
            require(holds, f"{where}: notes", note, "must be `ROW` or `ROW, COLUMN`")
        for claim in self.claims:
            for label in (claim.better, claim.than):
                row("claims", label)
            for label in claim.columns:
                column("claims", label)
            number = claim.in_columns
            most = len(claim.columns or self.columns)
            require(
                0 <= number <= most,
                f"{where}: claims: in_columns",
                number,
                f"must be 0 to {most}, its columns",
            )
            better, than = (
                next(row for row in self.rows if row.label == label)
                for label in (claim.better, claim.than)
            )
            require(
                replace(better, label="") != replace(than, label=""),
                f"{where}: claims: than",
                claim.than,
                f"must be another row than {claim.better!r}, of another method or settings: "
                "a row is never better than itself",
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
    entry_as_read: Suite = built(Suite, name, {**entry, "name": name})
    for member in entry_as_read.experiments:
        # A suite of suites is refused: two could name each other.
        is_experiment = member in entries and "experiments" not in entries[member]
        require(is_experiment, f"{name}: experiments", member, "is no experiment")
    if "size" in entry:
        size = entry_as_read.size
        require(size in SIZES, f"{name}: size", size, f"must be one of {', '.join(SIZES)}")
    return entry_as_read


def experiment(name: str, entry: Mapping[str, Any]) -> Experiment:
    """Return one entry of the file as an experiment."""
    entry = {**entry, "name": name}
    if "claims" in entry:
        entry["claims"] = claims_of(name, entry["claims"])
    if "methods" in entry:
        methods = entry.pop("methods")
        if not isinstance(methods, list):
            raise no_list(name, "methods", methods)
        entry["rows"] = tuple(row(name, method) for method in methods)
    entry_as_read: Experiment = built(Experiment, name, entry, public={"rows": "methods"})
    with naming(name):
        entry_as_read = with_new_names(entry_as_read)
    refuse_wrong_settings(entry_as_read)
    refuse_repeated_methods(entry_as_read)
    return entry_as_read


def with_new_names(experiment: Experiment) -> Experiment:
    """Return the experiment with renamed settings under their new names.

    Raises SettingError where one table gives both names of a setting.
    """
    return replace(
        experiment,
        settings=given(experiment.settings),
        assumed=given(experiment.assumed),
        smoke=given(experiment.smoke),
        columns={name: given(settings) for name, settings in experiment.columns.items()},
        rows=tuple(replace(row, settings=given(row.settings)) for row in experiment.rows),
    )


def refuse_wrong_settings(experiment: Experiment) -> None:
    """Raise SettingError for a setting that there is none of, or one of another type, with where it stands.

    Settings of a section may be those of a method of the user's own, which is not loaded yet.
    """
    known = defaults()
    places: dict[str, Settings] = {"settings": experiment.settings, "assumed": experiment.assumed}
    places |= {f"columns: {name}": settings for name, settings in experiment.columns.items()}
    places |= {f"methods: {row.label}": row.settings for row in experiment.rows}
    places["smoke"] = experiment.smoke
    for place, settings in places.items():
        where = f"{experiment.name}: {place}"
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
            remedy = f"write {'+'.join(dict.fromkeys(names))}"
            rule = "names a method twice"
            raise SettingError(
                "method",
                row.method,
                rule,
                where=where,
                remedy=remedy,
            )


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
    ((written, stated),) = entry.items()
    heading = label_of(name, "methods", written)
    settings: dict[str, Scalar] = read_as(Settings, stated, name, f"methods: {heading}")
    method = settings.pop("method", heading)
    deployed = settings.pop("deployed", "")
    fields = {
        "label": heading,
        "method": method,
        "settings": settings,
        "deployed": deployed,
    }
    return built(Row, where, fields)  # type: ignore[no-any-return]


def entries_in(path: Path) -> dict[str, Experiment | Suite]:
    """Return the experiments of a file by their names, then its suites. Raises SettingError as they do."""
    entries = entries_of(path)
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


def known_entries(stated: Path | None = None) -> dict[str, Experiment | Suite]:
    """Return all experiments and suites by their names.

    Those of the user's file, which is the one stated or experiments.yaml of the working folder, go before the shipped.
    """
    file = user_file(stated)
    return entries_in(FILE) | (entries_in(file) if file else {})


def user_file(stated: Path | None = None) -> Path | None:
    """Return the user's file of experiments: the one stated, or the working folder's where it is not the shipped."""
    if stated is not None:
        return stated
    if HERE.is_file() and not (FILE.is_file() and HERE.samefile(FILE)):
        return HERE
    return None


def entry_named(name: str, known: Mapping[str, Experiment | Suite]) -> Experiment | Suite | None:
    """Return the entry of a name, or that of NAME-smoke at its smallest size; None where there is none."""
    if name in known:
        return known[name]
    whole = known.get(name.removesuffix(SMOKE))
    if name.endswith(SMOKE) and isinstance(whole, Experiment) and whole.smoke:
        return whole.smoke_size
    return None


def find_all(names: Sequence[str], stated: Path | None = None) -> list[Experiment]:
    """Return the experiments of those names, each once; a suite's name stands for all of its.

    Says where experiments are read from that nobody named the file of. Raises SettingError with the nearest name when
    there is none.
    """
    file = user_file(stated)
    of_the_user = entries_in(file) if file else {}
    known = entries_in(FILE) | of_the_user
    there = [name for name in names if name in of_the_user]
    if stated is None and there:
        log.warning("read from ./%s: %s", file, ", ".join(there))
    chosen: dict[str, Experiment] = {}
    for name in names:
        entry = entry_named(name, known)
        if entry is None:
            near = difflib.get_close_matches(name, known, 1)
            files = " or ".join(dict.fromkeys(path.name for path in (file or FILE, FILE)))
            if near:
                rule = f"is not in {files}"
                remedy = f"did you mean {near[0]}?"
            else:
                rule = f"is not in {files}; known are {', '.join(known)}"
                remedy = ""
            raise SettingError("experiment", name, rule, remedy=remedy)
        for member in entry.members if isinstance(entry, Suite) else (name,):
            part = entry_named(member, known)
            if not isinstance(part, Experiment):
                raise SettingError("experiments", member, "is no experiment", where=name)
            chosen[member] = part
    return list(chosen.values())
