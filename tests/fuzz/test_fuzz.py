"""A few hundred changed things of every kind that arrives, the same ones every time; `make fuzz` takes 110,000."""

import logging
from collections import Counter
from pathlib import Path

import pytest
from files import READERS, fuzz_files
from harness import Subject, Tally, Verdict, judge
from hypothesis import strategies as st
from replies import fuzz_replies

from client_app.handlers import ClientReply
from server_app.methods import METHODS
from strategies.core.server import Update

MENDED = {"rounds.jsonl"}
"""What is damaged there is read as if it were not there."""
OWN_UPLOADS = {method.reveals: name for name, method in METHODS.items()}.values()
"""One method for each kind of thing that methods send."""


EXAMPLES = {"data": 4, "TOML files": 25}
"""Of kinds that take longest to read: data are written into a cache each time."""


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("fedskew"), "level", logging.CRITICAL)  # who is left out


def check(tallies: dict[str, Tally]) -> None:
    """Fail where something wrong was accepted, or where nothing was refused, so that nothing was tried."""
    bad = [line for tally in tallies.values() for line in tally.bad]
    assert not bad, "\n".join(bad)
    refused: Counter[str] = Counter()
    for name, tally in tallies.items():
        refused[name.partition(",")[0].partition(":")[0]] += tally.counts[Verdict.REFUSED]
    assert {name for name, number in refused.items() if not number} <= MENDED


@pytest.mark.parametrize("kind", READERS)
def test_no_changed_file_is_more_than_refused_or_plausible(kind: str) -> None:
    check(fuzz_files(kind, EXAMPLES.get(kind, 60)))


@pytest.mark.parametrize("name", OWN_UPLOADS)
def test_no_changed_reply_is_more_than_refused_or_plausible(name: str, tmp_path: Path) -> None:
    check(fuzz_replies(name, 24, 0, tmp_path))


def test_a_server_that_believes_everything_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def believe(client: int, answer: ClientReply, *rest: object) -> Update:
        examples = int(answer.metrics["num-examples"])
        return Update(client, answer.states["model"], examples, {}, answer.metrics)

    monkeypatch.setattr("strategies.core.rounds.checked_update", believe)
    counts = fuzz_replies("fedavg", 160, 0, tmp_path)["fedavg: training"].counts
    assert counts[Verdict.WRONG] and counts[Verdict.CRASHED], counts


def test_the_harness_tells_the_outcomes_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.LIMIT", 0.2)

    def read(arrived: str, folder: Path) -> str:
        match arrived:
            case "refused":
                raise ValueError("one sentence")
            case "crashed":
                raise KeyError("x")
            case "hung":
                while True:
                    pass
            case "outside":
                (folder.parent / "escaped").write_text("")
        return arrived

    subject = Subject(
        "words",
        st.just("crashed"),
        read,
        "genuine",
        (ValueError,),
        lambda result: result == "plausible",
    )
    expected = {
        "genuine": Verdict.GENUINE, "plausible": Verdict.PLAUSIBLE, "other": Verdict.WRONG,
        "refused": Verdict.REFUSED, "crashed": Verdict.CRASHED, "hung": Verdict.HUNG, "outside": Verdict.OUTSIDE,
    }  # fmt: skip
    inside = tmp_path / "inside"
    inside.mkdir()
    for arrived, outcome in expected.items():
        assert judge(subject, arrived, inside)[0] is outcome, arrived
