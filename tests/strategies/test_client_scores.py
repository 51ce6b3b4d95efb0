"""What the server makes of clients that cannot measure the deployed models."""

from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, RecordDict

from client_app.local_site import NOT_FINITE, POLICY
from strategies.core.exchange import Exchange, TooFewReplies
from strategies.core.round_result import Diverged
from strategies.core.scoring import evaluate_on_clients


def rounds_with(kinds: list[str]) -> Any:
    """Return rounds in which each client fails to measure, for the reason of this kind."""
    exchange = Exchange(list(range(len(kinds))))
    errors = {
        f"{client}/error": ConfigRecord({"reason": "it cannot measure", "kind": kind})
        for client, kind in enumerate(kinds)
    }
    exchange.sort(RecordDict(errors), 1, set(range(len(kinds))))
    return SimpleNamespace(
        deployed={},
        clients=len(kinds),
        round=4,
        request=lambda kind, task, states: None,
        ask=lambda grid, clients, request: exchange,
        exchange_settings=SimpleNamespace(min_reply_share=1.0),
    )


@pytest.mark.parametrize("kinds", [[NOT_FINITE, NOT_FINITE], [POLICY, NOT_FINITE]])
def test_outputs_that_are_not_finite_end_the_run_as_diverged(kinds: list[str]) -> None:
    with pytest.raises(Diverged, match=r"^diverged in round 4: .*not finite at any client"):
        evaluate_on_clients(rounds_with(kinds), None, 10, {})  # type: ignore[arg-type]


def test_sites_that_do_not_allow_it_are_no_divergence() -> None:
    with pytest.raises(TooFewReplies, match="evaluation after round 4"):
        evaluate_on_clients(rounds_with([POLICY, POLICY]), None, 10, {})  # type: ignore[arg-type]
