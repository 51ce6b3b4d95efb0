"""Attacks on a federation: each is refused, and as it has to be, beside an honest request that passes."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from running_federation import RUNNING_FEDERATION

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "deploy"))

import try_attacks
from attacks import (
    at_the_gate,
    by_files,
    by_masked_sums,
    by_own_code,
    by_the_coordinator,
    by_the_superlink,
    impostors,
    replies,
)
from attacks.stage import ALONE, Attack, ControlFailed, Refusal, Skipped, Stage, Succeeded
from local_federation import LocalFederation
from try_attacks import attempt, status_of

from client_app.runtime import site_runtime
from data.agreement import read_agreement
from tests.site_files import NAMES, site_folders, with_mask_keys

AT_WORK = [
    *by_the_superlink.AT_WORK_ATTACKS,
    *by_the_coordinator.AT_WORK_ATTACKS,
    *(row for row in at_the_gate.ATTACKS if row.attempt is not at_the_gate.large_body),
    *impostors.ATTACKS[:3],
]
"""On the running federation; what is too large for a run that has ended is refused before its size is looked at."""
ALONE_ROWS = [
    *(
        row
        for row in by_masked_sums.ATTACKS
        if row.attempt
        in (
            by_masked_sums.in_the_clear,
            by_masked_sums.restored,
            by_masked_sums.killed_in_between,
        )
    ),
    *by_own_code.ATTACKS,
    *by_files.ATTACKS[-4:-2],
    *replies.IN_PROCESS[:4],
]
"""In this process, on the same code."""


@pytest.fixture
def stage(federation: LocalFederation) -> Stage:
    stage = Stage(federation)
    by_the_superlink.signed_run(stage)
    return stage


def at_work(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that needs the running federation."""
    for mark in RUNNING_FEDERATION:
        test = mark(test)
    return test


@at_work
@pytest.mark.parametrize("row", AT_WORK, ids=lambda row: row.what)
def test_an_attack_on_the_running_federation_is_refused(row: Attack, stage: Stage) -> None:
    tried = attempt(row, stage)
    assert tried.became == "refused", tried


@at_work
def test_a_key_that_leaves_the_text_is_refused_at_once_and_others_are_not(stage: Stage) -> None:
    file = stage.folder.agreement_file
    agreed = file.read_text()
    signs = at_the_gate.sign_of_life(stage.nodes[at_the_gate.ROGUE])
    entry = rf'\[\[site\]\]\nname = "{stage.names[at_the_gate.ROGUE]}"\n(?:[a-z-]+ = .*\n)+'
    at_the_gate.honest_site(stage)
    try:
        file.write_text(re.sub(entry, "", agreed))
        with stage.fleet(stage.key(at_the_gate.ROGUE)) as client:
            refused = stage.refused_by_gate(
                at_the_gate.HEARTBEAT, lambda: client.SendNodeHeartbeat(signs)
            )
        assert refused.kind == "HTTP 403"
        other = at_the_gate.sign_of_life(stage.nodes[0])
        with stage.fleet(stage.key(0)) as client:
            assert client.SendNodeHeartbeat(other).success
    finally:
        file.write_text(agreed)
    at_the_gate.honest_site(stage)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Any]:
    """What rows in this process need of a stage: three sites that can mask."""
    site_folders(tmp_path / "sites", site=with_mask_keys())
    file = tmp_path / "sites/federation.toml"
    site_runtime.cache_clear()
    yield SimpleNamespace(
        federation=SimpleNamespace(work=tmp_path),
        folder=SimpleNamespace(agreement_file=file, agreement=read_agreement(file)),
        place=lambda site: tmp_path / "sites" / NAMES[site],
    )
    site_runtime.cache_clear()


@pytest.mark.parametrize("row", ALONE_ROWS, ids=lambda row: row.what)
def test_an_attack_in_one_process_is_refused(row: Attack, alone: Any) -> None:
    tried = attempt(row, alone)
    assert tried.became == "refused", tried


# ---- the table of `make attacks` -------------------------------------------------------------------------------------

FORBIDDEN = Refusal("HTTP 403", "the key is not of federation.toml")


def passes(stage: Stage) -> str:
    return "the honest request: 200"


def refuses(*refusals: Refusal) -> Callable[[Stage], list[Refusal]]:
    return lambda stage: list(refusals)


def raises(error: Exception) -> Callable[[Stage], Any]:
    def call(stage: Stage) -> Any:
        raise error

    return call


@pytest.mark.parametrize(
    ("honest", "tried", "became"),
    [
        (passes, refuses(FORBIDDEN), "refused"),
        (lambda stage: "", refuses(FORBIDDEN), "CONTROL FAILED"),
        (raises(ControlFailed("403")), refuses(FORBIDDEN), "CONTROL FAILED"),
        (passes, raises(Skipped("needs root")), "skipped"),
        (passes, refuses(Refusal("HTTP 500", FORBIDDEN.line)), "WRONG REFUSAL"),
        (passes, refuses(), "WRONG REFUSAL"),
        (passes, raises(Succeeded("it was read")), "NOT REFUSED"),
    ],
)
def test_a_row_counts_only_where_its_control_passes_and_its_refusal_is_of_the_kind(
    honest: Any, tried: Any, became: str
) -> None:
    stage: Any = SimpleNamespace(federation=SimpleNamespace(work=Path("/nowhere")))
    words = Refusal("HTTP 403", "not of federation.toml")
    row = attempt(Attack("a row", "somebody", ALONE, honest, tried, (words,)), stage)
    assert row.became == became
    assert status_of([row], True, False)[0] == (became != "refused")
    assert status_of([row], True, True)[0] == (became not in ("refused", "skipped"))
    assert status_of([row], False, True)[0] == status_of([], True, True)[0] == 1


def test_every_row_stands_once_and_says_how_it_is_refused() -> None:
    rows = [*try_attacks.DURING, *try_attacks.AFTER, *try_attacks.LAST, *try_attacks.IN_PROCESS]
    assert len({row.what for row in rows}) == len(rows)
    for row in rows:
        assert row.expected and row.honest is not row.attempt
