"""The table of `make attacks`: it ends with 1 wherever a row has not shown what it claims."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "deploy"))

import try_attacks
from attacks import by_files, by_masked_sums, by_own_code, replies
from attacks.stage import (
    ALONE,
    Attack,
    ControlFailed,
    Refusal,
    Skipped,
    Stage,
    Succeeded,
    require,
)
from try_attacks import Row, attempt, status_of, table

from client_app import handlers, user_code
from client_app.masked_sum import SumList
from client_app.runtime import site_runtime
from data.agreement import read_agreement
from site_agent.sum_ledger import SumLedger
from tests.site_files import NAMES, site_folders, with_mask_keys

STAGE: Any = SimpleNamespace(federation=SimpleNamespace(work=Path("/nowhere")))
FORBIDDEN = Refusal("HTTP 403", "not of federation.toml")


def passes(stage: Stage) -> str:
    return "the honest request: 200"


def forbidden(stage: Stage) -> list[Refusal]:
    return [Refusal("HTTP 403", "the key is not of federation.toml")]


def attack(
    honest: Callable[[Stage], str] = passes,
    attempt: Callable[[Stage], list[Refusal]] = forbidden,
    *expected: Refusal,
) -> Attack:
    return Attack("a row", "somebody", ALONE, honest, attempt, expected or (FORBIDDEN,))


def raising(error: Exception) -> Callable[[Stage], Any]:
    def call(stage: Stage) -> Any:
        raise error

    return call


def ends_with(row: Row, **stated: Any) -> tuple[str, int]:
    """Return what became of a row, and the exit status of a table that has another, good one beside it."""
    good = attempt(attack(), STAGE)
    assert good.became == "refused"
    status, _ = status_of([good, row], stated.get("same", True), stated.get("allow", False))
    return row.became, status


def test_a_row_whose_control_passes_and_whose_refusal_is_of_the_kind_ends_with_0() -> None:
    row = attempt(attack(), STAGE)
    assert ends_with(row) == ("refused", 0)
    assert row.passed == "the honest request: 200" and row.kinds == "HTTP 403"
    assert "| **" not in table([row])


@pytest.mark.parametrize(
    "honest",
    [
        raising(ControlFailed("the honest request: 403")),
        raising(ConnectionError("nobody listens")),
        raising(Succeeded("the log holds no line")),
        lambda stage: "",
        lambda stage: require(False, "it is refused too") or "never",
    ],
)
def test_a_control_that_fails_ends_with_1(honest: Callable[[Stage], str]) -> None:
    row = attempt(attack(honest), STAGE)
    assert ends_with(row) == ("CONTROL FAILED", 1)
    assert "**CONTROL FAILED**" in table([row])


@pytest.mark.parametrize("where", ["honest", "attempt"])
def test_a_skipped_row_ends_with_1_unless_it_may_be(where: str) -> None:
    skips = raising(Skipped("needs root"))
    row = attempt(attack(skips) if where == "honest" else attack(passes, skips), STAGE)
    assert ends_with(row) == ("skipped", 1)
    assert ends_with(row, allow=True) == ("skipped", 0)
    assert "--allow-skipped" in status_of([row], True, False)[1]


@pytest.mark.parametrize(
    "refusals",
    [
        [Refusal("HTTP 500", "the key is not of federation.toml")],
        [Refusal("ConnectionError", "nobody listens")],
        [Refusal("HTTP 403", "the clock is wrong")],
        [Refusal("HTTP 403", "not of federation.toml"), Refusal("HTTP 403", "and another")],
        [],
    ],
)
def test_another_kind_of_refusal_ends_with_1(refusals: list[Refusal]) -> None:
    row = attempt(attack(passes, lambda stage: refusals), STAGE)
    assert ends_with(row) == ("WRONG REFUSAL", 1)


@pytest.mark.parametrize(
    ("error", "became"),
    [(Succeeded("it was read"), "NOT REFUSED"), (KeyError("no such thing"), "NOT TRIED")],
)
def test_an_attack_that_succeeds_or_breaks_ends_with_1(error: Exception, became: str) -> None:
    row = attempt(attack(passes, raising(error)), STAGE)
    assert ends_with(row, allow=True) == (became, 1)


def test_a_row_that_says_no_refusal_ends_with_1() -> None:
    unsaid = Attack("a row", "somebody", ALONE, passes, forbidden, ())
    assert ends_with(attempt(unsaid, STAGE)) == ("WRONG REFUSAL", 1)


def test_a_row_after_the_training_it_has_to_meet_ends_with_1() -> None:
    assert ends_with(attempt(attack(), STAGE, over=lambda: True)) == ("NOT TRIED", 1)


def test_another_hash_and_an_empty_table_end_with_1() -> None:
    assert ends_with(attempt(attack(), STAGE), same=False) == ("refused", 1)
    assert status_of([], True, False)[0] == 1


def test_every_row_of_the_table_stands_once_and_says_how_it_is_refused() -> None:
    rows = [
        *try_attacks.DURING,
        *try_attacks.AFTER,
        *try_attacks.LAST,
        *try_attacks.IN_PROCESS,
    ]
    names = [row.what for row in rows]
    assert len(names) == len(set(names)) >= 54
    for row in rows:
        assert row.expected and all(expected.kind for expected in row.expected), row.what
        assert row.honest is not row.attempt


def row_of(what: str) -> Attack:
    return next(row for row in try_attacks.IN_PROCESS if what in row.what)


BROKEN: dict[str, tuple[Any, str, Any]] = {
    "num-examples raised": (replies, "checked_metrics", lambda client, metrics, server: 300),
    "2^53 samples": (replies, "checked_metrics", lambda client, metrics, server: 300),
    "replies of another node": (
        replies,
        "replies",
        lambda grid, asked, timeout, unsolicited: grid.pull_messages([]),
    ),
    "a pickle in a reply": (
        by_files.Exchange,
        "receive",
        lambda self, replies, assignment: self.answers.update(
            {0: SimpleNamespace(states={"model": {"weight": by_files.torch.ones(3)}})}
        ),
    ),
}
"""By row, the defence that is broken: it lets everything pass."""


def test_a_server_that_computes_for_ever_is_seen_by_its_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replies, "SOON", 0.5)
    honest = replies.checked_metrics

    def endless(client: int, metrics: Any, server: Any) -> int:
        while metrics["num-examples"] > 1e9:
            pass
        return honest(client, metrics, server)

    monkeypatch.setattr(replies, "checked_metrics", endless)
    row = attempt(row_of("2^53 samples"), STAGE)
    assert row.refused == "the server still computes after 0.5 s"
    assert ends_with(row) == ("NOT REFUSED", 1)


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_defence_is_seen_by_its_row(
    what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage: Any = SimpleNamespace(federation=SimpleNamespace(work=tmp_path))
    row = row_of(what)
    assert ends_with(attempt(row, stage)) == ("refused", 0)
    monkeypatch.setattr(*BROKEN[what])
    assert ends_with(attempt(row, stage)) == ("NOT REFUSED", 1)


def masking_stage(folder: Path) -> Any:
    """Return what the rows about masked sums need of a stage: three sites that can mask."""
    site_folders(folder / "sites", site=with_mask_keys())
    file = folder / "sites/federation.toml"
    return SimpleNamespace(
        federation=SimpleNamespace(work=folder),
        folder=SimpleNamespace(agreement_file=file, agreement=read_agreement(file)),
        place=lambda site: folder / "sites" / NAMES[site],
    )


def lenient(text: str) -> SumList:
    """Return a list from JSON that may hold more than a list."""
    entries = json.loads(text)
    names, nonces = zip(*entries["sites"], strict=True)
    return SumList(entries["federation"], entries["purpose"], names, nonces)


@pytest.mark.parametrize("row", by_masked_sums.ATTACKS, ids=lambda row: row.what)
def test_each_attack_on_masked_sums_is_refused_beside_an_honest_request(
    row: Attack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site_runtime.cache_clear()
    assert ends_with(attempt(row, masking_stage(tmp_path))) == ("refused", 0)

    if row.attempt in (by_masked_sums.hundred_times, by_masked_sums.out_of_range):
        return  # no rule of the ledger is broken there: its own tests and the server's look at these
    # A ledger that checks nothing, and a site that answers in the clear, are seen.
    monkeypatch.setattr(SumLedger, "wrong_list", lambda self, purpose, sum_list: "")
    monkeypatch.setattr(SumLedger, "wrong_answer", lambda self, sum_list, entry: "")
    monkeypatch.setattr(SumList, "from_json", staticmethod(lenient))
    monkeypatch.setattr(handlers, "refuse_in_the_clear", lambda runtime, question: None)
    site_runtime.cache_clear()
    became, status = ends_with(attempt(row, masking_stage(tmp_path / "broken")))
    assert became in ("NOT REFUSED", "WRONG REFUSAL") and status == 1
    site_runtime.cache_clear()


def forget_modules() -> None:
    """Forget the agreed modules of earlier rows."""
    site_runtime.cache_clear()
    for name in [*user_code._agreed]:
        del user_code._agreed[name], sys.modules[name]


def without_check(agreement: Any, file: Path, where: str) -> bytes:
    return file.read_bytes()


def read_again(name: str, content: bytes, file: Path) -> None:
    user_code.load_agreed(name, file.read_bytes(), file)


def allow_all(*anything: Any) -> None:
    pass


BROKEN_BY_ROW: dict[Any, tuple[str, Any]] = {
    by_own_code.other_hash: ("site_agent.module.read_agreed", without_check),
    by_own_code.changed_after_the_check: ("site_agent.module.load_agreed", read_again),
    by_own_code.code_in_the_message: ("site_agent.module.is_of_module", lambda *names: True),
    by_own_code.excluded: ("site_agent.module.check_variant_names", allow_all),
}
"""By what a row tries, a defence without which it must not be refused as it is."""


@pytest.mark.parametrize("row", by_own_code.ATTACKS, ids=lambda row: row.what)
def test_each_attack_by_own_code_is_refused_beside_an_honest_request(
    row: Attack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_modules()
    assert ends_with(attempt(row, masking_stage(tmp_path))) == ("refused", 0)
    forget_modules()
    monkeypatch.setattr(*BROKEN_BY_ROW[row.attempt])
    became, status = ends_with(attempt(row, masking_stage(tmp_path / "broken")))
    assert became in ("NOT REFUSED", "WRONG REFUSAL") and status == 1
    forget_modules()
