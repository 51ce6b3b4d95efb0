"""What a paper says of an experiment's rows, in four forms. report/claims.py judges it.

Better compares two rows. Contrast is about the order of the columns: a trend, a peak or a knee. Series is about a
number by round. HeldBy names the test of this repository that checks an equation or a fact, such as one head for every
partition.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, Strict
from pydantic.dataclasses import dataclass

from data import SettingError, require
from data.errors import shortened
from fedskew.experiments.entries import naming, read_as
from server_app.keys import SELECTIONS


def label_of(name: object) -> object:
    """Return a key of YAML as text, where it is a number."""
    return str(name) if type(name) in (int, float) else name


Label = Annotated[str, BeforeValidator(label_of)]
Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict()]
Truth = Annotated[bool, Strict()]
STRICT = ConfigDict(extra="forbid")
TEST_NAME = re.compile(r"tests/[\w/]+\.py::\w+")


def require_known(key: str, labels: Iterable[str], kind: str, known: Collection[str]) -> None:
    """Raise SettingError for a label of `key` that no row, or no column, has."""
    rule = f"is no {kind}; {kind}s are {shortened(', '.join(known))}"
    for label in labels:
        require(label in known, key, label, rule)


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Claim:
    """What every form has."""

    says: str
    number: str = ""
    """The paper's number, as text."""
    by: Number = 0.0
    """Percentage points, or rounds, that a difference must exceed; a negative number allows a small loss."""
    columns: tuple[Label, ...] = ()
    """Where the claim is made, in the order that a trend has; empty is everywhere."""
    in_columns: Whole = 0
    """In how many of these columns it must hold, of a form that asks one thing of a column; 0 is in all."""
    metric: str = ""
    """Empty is the experiment's."""
    selection: str = ""
    """Empty is the experiment's."""
    expected: Truth = True
    """Whether the claim should hold at the experiment's scale; where it need not, `why` says so."""
    why: str = ""

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows that it is about."""
        return ()

    @property
    def relation(self) -> str:
        """What it says of its rows, in words: "fedbn above fedavg"."""
        return ""

    def check(self, rows: Mapping[str, Any], columns: tuple[str, ...]) -> None:
        """Raise SettingError for what the claim cannot mean.

        Args:
            rows: of the experiment, by label what distinguishes them.
            columns: of the experiment.
        """
        require_known("", self.rows, "row", rows)
        require_known("columns", self.columns, "column", columns)
        rule = f"must be one of {', '.join(SELECTIONS)}"
        require(self.selection in ("", *SELECTIONS), "selection", self.selection, rule)
        most = len(self.columns or columns)
        rule = f"must be 0 to {most}, its columns"
        require(0 <= self.in_columns <= most, "in_columns", self.in_columns, rule)
        rule = "is for claims that ask one thing of each column"
        require(self.by_column or not self.in_columns, "in_columns", self.in_columns, rule)

    @property
    def by_column(self) -> bool:
        """Whether it asks one thing of each column, so that columns can be counted."""
        return False


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Better(Claim):
    """`better` is above `than` by more than `by`, or reaches its accuracy sooner, or has the smoother curve."""

    better: str
    than: str
    sooner: Truth = False
    times: Annotated[Number, Field(ge=1)] = 1.0
    """With `sooner`: `better` needs at most 1 / times of the rounds."""
    smoother: Truth = False
    """Compare the mean change between evaluated rounds, in the second half of the two curves."""
    within: Annotated[Number, Field(ge=0)] = 0.0
    """Points: the rows are equivalent, their difference lies within this margin (Schuirmann 1987). 0 asks for more."""

    @property
    def rows(self) -> tuple[str, ...]:
        return (self.better, self.than)

    @property
    def relation(self) -> str:
        word = "smoother than" if self.smoother else "above"
        if self.within:
            word = f"within {self.within:g} points of"
        if self.sooner:
            word = "sooner than" if self.times == 1 else f"{self.times:g} times sooner than"
        return f"{self.better} {word} {self.than}"

    def check(self, rows: Mapping[str, Any], columns: tuple[str, ...]) -> None:
        super().check(rows, columns)
        rule = (
            f"must be another row than {self.better!r}, of another method or settings: "
            "a row is never better than itself"
        )
        require(rows[self.better] != rows[self.than], "than", self.than, rule)
        require(self.times == 1 or self.sooner, "times", self.times, "is for `sooner: true`")
        forms = [self.sooner, self.smoother, self.within > 0]
        require(sum(forms) < 2, "better", self.better, "takes one of sooner, smoother and within")
        require(not (self.within and self.by), "by", self.by, "does not go with within")

    @property
    def by_column(self) -> bool:
        # Equivalence asks two things: neither row may be far above the other.
        return not self.within


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Contrast(Claim):
    """Every row of `over`, or its difference from the row `than`, has a shape over the columns in their order."""

    over: Annotated[tuple[str, ...], Field(min_length=1)]
    than: str = ""
    trend: Literal["", "rises", "falls"] = ""
    """The fitted line's rise from the first column to the last exceeds `by`, and each step is above -slack."""
    slack: Annotated[Number, Field(ge=0)] = 0.0
    """Points that a step of a trend may go the other way; .inf asks nothing of the steps."""
    peak: Label = ""
    """The column that is higher than every other one by more than `by`."""
    knee: Truth = False
    """Over three columns the second step falls by more than `by`, and by more than the first."""

    @property
    def rows(self) -> tuple[str, ...]:
        return (*self.over, self.than) if self.than else self.over

    @property
    def relation(self) -> str:
        rows = ", ".join(self.over) + (f" beside {self.than}" if self.than else "")
        if self.peak:
            return f"{rows} highest in {self.peak}"
        return f"{rows} {self.trend}" if self.trend else f"{rows} falls after a knee"

    def check(self, rows: Mapping[str, Any], columns: tuple[str, ...]) -> None:
        super().check(rows, columns)
        of_claim = self.columns or columns
        shapes = [bool(self.trend), bool(self.peak), self.knee]
        require(sum(shapes) == 1, "over", list(self.over), "needs one of trend, peak and knee")
        require_known("peak", filter(None, [self.peak]), "column", of_claim)
        fits = len(of_claim) == 3 if self.knee else len(of_claim) > 1
        rule = "must be two or more, and for a knee three: before, at and after it"
        require(fits, "columns", list(of_claim), rule)


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Series(Claim):
    """A number of a row's records by round: `below` a bound from a round on, falling, or staying above a bound."""

    series: str
    """The number's name."""
    row: str
    below: Number | None = None
    by_round: Whole = 0
    """With `below`: the first round of which it is asked."""
    falls: Truth = False
    """Whether the last evaluated round must have less than the first."""
    stays_above: Number | None = None

    @property
    def rows(self) -> tuple[str, ...]:
        return (self.row,)

    @property
    def relation(self) -> str:
        return f"{self.series} of {self.row} by round"

    def check(self, rows: Mapping[str, Any], columns: tuple[str, ...]) -> None:
        super().check(rows, columns)
        has_bound = self.falls or (self.below, self.stays_above) != (None, None)
        rule = "needs one of `below: NUMBER`, `falls: true`, `stays_above: NUMBER`"
        require(has_bound, "series", self.series, rule)
        go_together = (self.below is None) == (self.by_round < 1)
        rule = "goes with `below: NUMBER`, and is a round from 1 on"
        require(go_together, "by_round", self.by_round, rule)
        require(self.by == 0, "by", self.by, "does not go with series")

    @property
    def by_column(self) -> bool:
        return (self.below is not None) + self.falls + (self.stays_above is not None) == 1


@dataclass(frozen=True, config=STRICT, kw_only=True)
class HeldBy(Claim):
    """An equation or a fact of partitions, which a test of this repository checks without training."""

    held_by: str
    """tests/FILE.py::TEST."""

    @property
    def relation(self) -> str:
        return self.held_by

    def check(self, rows: Mapping[str, Any], columns: tuple[str, ...]) -> None:
        is_test = TEST_NAME.fullmatch(self.held_by) is not None
        require(is_test, "held_by", self.held_by, "must be tests/FILE.py::TEST")


FORMS: Mapping[str, type[Claim]] = {
    "held_by": HeldBy,
    "series": Series,
    "over": Contrast,
}
"""By the key that only this form has; a claim without one is Better."""


def claim_of(entry: object) -> Claim:
    """Return a claim from its keys in a file of experiments: one key tells the form. Raises SettingError."""
    if not isinstance(entry, dict):
        raise SettingError("claims", entry, "must be keys with values")
    kind = next((form for key, form in FORMS.items() if key in entry), Better)
    with naming("claims"):
        claim: Claim = read_as(kind, entry)
    return claim
