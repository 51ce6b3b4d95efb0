"""What arrives, changed at random, and what becomes of it: one table for files and for whatever else arrives.

A subject makes something genuine, says how it may be changed, and reads it. What comes of one change is one of

* refused: an exception that the subject names, in one line;
* as genuine: read, and equal to what the genuine one gives;
* other but plausible: read, of valid form, and other; only where nothing (no checksum) tells it from a genuine one;
* accepted though wrong: read, and other, where the reader could know better, or of a form that it never should give;
* crashed: any other exception;
* hung: not ended after LIMIT seconds of the processor's time;
* outside its folder: a file has appeared or changed anywhere but in the folder that the subject may write to.
"""

import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

LIMIT = 5
"""Seconds of the processor's time, far beyond what any reader takes."""


class Verdict(StrEnum):
    """What becomes of something that arrives."""

    REFUSED = "refused"
    GENUINE = "as genuine"
    PLAUSIBLE = "other but plausible"
    WRONG = "accepted though wrong"
    CRASHED = "crashed"
    HUNG = "hung"
    OUTSIDE = "outside its folder"


BAD = (Verdict.WRONG, Verdict.CRASHED, Verdict.HUNG, Verdict.OUTSIDE)


class Hung(BaseException):
    """The time is over; no reader catches it."""


@dataclass(frozen=True)
class Subject:
    """Something that reads what arrives."""

    name: str
    changed: SearchStrategy[Any]
    """What arrives, drawn anew for every example."""
    read: Callable[[Any, Path], Any]
    """(what arrives, a folder to write to) -> what it is read as, to be compared by ==."""
    genuine: Any
    """What `read` gives of the genuine one."""
    refusals: tuple[type[Exception], ...]
    plausible: Callable[[Any], bool] = lambda result: False
    """Whether another result is of valid form; never, where a checksum tells a changed one from a genuine one."""


@dataclass
class Tally:
    """The outcomes of one subject."""

    counts: Counter[Verdict] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)
    """The first bad ones: outcome, what arrived, and why."""


def fuzz(subject: Subject, examples: int, root: Path, number: int = 0) -> Tally:
    """Return what becomes of so many examples, the same ones for the same seed `number`; `root` is an empty folder."""
    tally, inside = Tally(), root / "inside"
    inside.mkdir(parents=True)

    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(subject.changed)
    def check_one(arrived: Any) -> None:
        outcome, why = judge(subject, arrived, inside)
        tally.counts[outcome] += 1
        if outcome in BAD and len(tally.bad) < 5:
            tally.bad.append(f"{subject.name}: {outcome}: {shown(arrived)}: {why}")

    check_one()
    return tally


def shown(arrived: Any) -> str:
    """Return the beginning of what arrived, in which there may be a number that Python prints to nobody."""
    try:
        return repr(arrived)[:300]
    except ValueError:
        return f"a {type(arrived).__name__} with a number of more than 4,300 digits"


def judge(subject: Subject, arrived: Any, inside: Path) -> tuple[Verdict, str]:
    """Return what becomes of one thing that arrives, and why."""
    before, why = elsewhere(inside), ""
    try:
        with limited():
            result = subject.read(arrived, inside)
            if result == subject.genuine:
                outcome = Verdict.GENUINE
            else:
                outcome = Verdict.PLAUSIBLE if subject.plausible(result) else Verdict.WRONG
                why = repr(result)[:300]
    except Hung:
        outcome = Verdict.HUNG
    except subject.refusals as error:
        is_sentence = "\n" not in str(error) and 0 < len(str(error)) < 2000
        outcome = Verdict.REFUSED if is_sentence else Verdict.CRASHED
        why = f"not one sentence: {error!r}"
    except Exception:
        outcome, why = Verdict.CRASHED, traceback.format_exc(limit=-4)
    return (Verdict.OUTSIDE, "") if elsewhere(inside) != before else (outcome, why)


def elsewhere(inside: Path) -> set[Path]:
    """Return the files beside the folder, where a name that leads out of it would appear."""
    return {
        path for path in inside.parent.rglob("*") if path != inside and inside not in path.parents
    }


@contextmanager
def limited() -> Iterator[None]:
    """Raise Hung within this context after LIMIT seconds."""

    def end(*given: object) -> None:
        raise Hung

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def table(tallies: dict[str, Tally]) -> str:
    """Return the outcomes as Markdown, a row a subject."""
    total: Counter[Verdict] = sum((tally.counts for tally in tallies.values()), Counter())
    rows = [["", "all", *Verdict], ["---", *["---:"] * (1 + len(Verdict))]]
    for name, counts in [
        *((name, tally.counts) for name, tally in tallies.items()),
        ("all", total),
    ]:
        rows.append([name, str(counts.total()), *(str(counts[outcome]) for outcome in Verdict)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


class Payload:
    """What a pickle would execute."""

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("__import__('builtins').__dict__.update(executed=True)",)


@dataclass(frozen=True)
class Edit:
    """One change of a sequence of bytes, at a share of its length."""

    kind: str
    place: float
    length: int
    content: bytes

    def apply(self, whole: bytes) -> bytes:
        """Return the bytes with this change."""
        start = int(self.place * len(whole))
        end = start + self.length
        flipped = bytes(byte ^ 1 << self.length % 8 for byte in whole[start : start + 1])
        return (
            whole[:start]
            + {
                "flip": flipped + whole[start + 1 :],
                "cut": b"",
                "delete": whole[end:],
                "repeat": whole[start:end] + whole[start:],
                "insert": self.content + whole[start:],
                "overwrite": self.content + whole[start + len(self.content) :],
            }[self.kind]
        )


EDITS = st.builds(
    Edit,
    st.sampled_from(["flip", "flip", "cut", "delete", "repeat", "insert", "overwrite"]),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 64),
    st.binary(max_size=8),
)


def mutated(whole: bytes) -> SearchStrategy[bytes]:
    """Return the bytes with one to four changes; as often with one bit changed, at any byte alike."""

    def change(edits: list[Edit]) -> bytes:
        changed = whole
        for edit in edits:
            changed = edit.apply(changed)
        return changed

    places = st.integers(0, max(0, len(whole) - 1))
    flips = places.map(lambda k: [Edit("flip", (k + 0.5) / max(1, len(whole)), k, b"")])
    return (st.lists(EDITS, min_size=1, max_size=4) | flips).map(change)


ODD = st.sampled_from(
    [None, True, -1, 0, 0.5, 2**63, -(2**70), 1e308, "", "x", "../x", "/tmp/x", "[/b]", "x" * 3000, "\0", "9" * 5000,
     [], [[]], {}, {"a": [1]}, ["x"], [1.5]]
)  # fmt: skip
"""Values that belong nowhere in particular."""


@st.composite
def altered(draw: st.DrawFn, tree: Any) -> Any:
    """Draw a tree of lists and keys with one node replaced, dropped or under another key."""
    if not isinstance(tree, list | dict) or not tree or draw(st.integers(0, 5)) == 0:
        return draw(ODD)
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    key = draw(st.sampled_from(keys))
    changed = tree.copy()
    match draw(st.sampled_from(["deeper"] * 7 + ["drop", "rename"])):
        case "drop":
            del changed[key]
        case "rename" if isinstance(changed, dict):
            changed[draw(st.sampled_from([*keys, "x", "", 3, True]))] = changed.pop(key)
        case _:
            changed[key] = draw(altered(tree[key]))
    return changed
