"""A few hundred changed replies to what asks for most; `make fuzz` takes 100,000 to all."""

import logging
from collections import Counter
from pathlib import Path

import pytest
from harness import Verdict
from replies import NORMS, SUBJECTS, fuzz_replies

from client_app.handlers import ClientReply
from server_app.methods import METHODS
from strategies.core.server import Update


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("fedskew"), "level", logging.CRITICAL)  # who is left out


@pytest.mark.parametrize("name", ["creff+fedshift", "ccvr", NORMS])
def test_no_changed_reply_is_more_than_refused_or_plausible(name: str, tmp_path: Path) -> None:
    tallies = fuzz_replies(name, 60, 0, tmp_path)
    bad = [line for tally in tallies.values() for line in tally.bad]
    assert not bad, "\n".join(bad)
    assert any(tally.counts[Verdict.GENUINE] for tally in tallies.values())
    for subject, tally in tallies.items():
        assert tally.counts[Verdict.REFUSED], (
            f"{subject}: nothing was refused, so nothing was tried"
        )


@pytest.mark.slow
def test_a_server_that_believes_everything_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def believe(client: int, answer: ClientReply, *rest: object) -> Update:
        return Update(
            client, answer.states["model"], int(answer.metrics["num-examples"]), {}, answer.metrics
        )

    monkeypatch.setattr("strategies.core.rounds.checked_update", believe)
    counts: Counter[Verdict] = Counter()
    for seed in range(
        4
    ):  # what hypothesis draws depends on the modules that are loaded: 60 replies may be too few
        (tmp_path / str(seed)).mkdir()
        tally = fuzz_replies("fedavg", 120, seed, tmp_path / str(seed))["fedavg: training"]
        counts += tally.counts
        if counts[Verdict.WRONG] and counts[Verdict.CRASHED]:
            assert tally.bad
            return
    pytest.fail(f"seen of {counts}")


def test_every_method_is_played() -> None:
    assert {*METHODS} < {*SUBJECTS}
