"""Questions about masked sums that a client refuses before anything is computed."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from client_builders import small_client

from client_app.handlers import ClientRequest, masked_reply
from client_app.local_site import NotAgreed
from client_app.run_spec import RunSpec
from client_app.site_questions import LIST_QUESTION, NONCE_QUESTION, purpose_of, words_of
from client_app.state import State
from client_app.variants.feature_statistics import FeatureStatistics, LabelCounts
from server_app.settings import parse


def run_spec_of(**changes: Any) -> RunSpec:
    settings = {"dataset": "digits", "model": "linear", "method": "fed-lda", "rounds": 0}
    return parse(settings | changes).run_spec()


def test_features_that_training_changes_are_not_summed() -> None:
    client = small_client((2, 1, 1, 1), model="linear")
    fixed = run_spec_of()
    statistics = FeatureStatistics()
    assert len(words_of(statistics, client, fixed)) > 0
    trained = replace(fixed, model="small-cnn")
    with pytest.raises(NotAgreed):
        words_of(statistics, client, trained)
    assert len(words_of(LabelCounts(), client, trained)) > 0  # labels are no features


class Sums:
    """A ledger that notes the purposes that it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def nonce(self, purpose: str, words: object) -> bytes:
        self.asked.append(purpose)
        return bytes(32)


def asking(states: Mapping[str, State] | None = None, **task: Any) -> ClientRequest:
    return ClientRequest("query", task, states or {}, "")


def runtime_of(sums: Sums | None, run_spec: RunSpec) -> Any:
    policy = SimpleNamespace(check_uploads=lambda uploads: None)
    return SimpleNamespace(site=SimpleNamespace(sums=sums), policy=policy, run_spec=run_spec)


def test_a_site_without_masked_sums_has_no_answer() -> None:
    runtime = runtime_of(None, run_spec_of())
    task = {"question": LIST_QUESTION, "variant": runtime.run_spec.variants[0].name}
    with pytest.raises(NotAgreed):
        masked_reply(asking(**task), runtime, small_client((2, 1, 1, 1), model="linear"))


@pytest.mark.parametrize("variant", ["feature-statistics", None])
def test_a_variant_that_the_run_does_not_have_is_not_summed(variant: str | None) -> None:
    sums = Sums()
    run_spec = run_spec_of()
    runtime = runtime_of(sums, run_spec)
    client = small_client((2, 1, 1, 1), model="linear")
    task = {"question": NONCE_QUESTION, "variant": variant}
    with pytest.raises(NotAgreed):
        masked_reply(asking(**task), runtime, client)
    assert sums.asked == []
    statistics = run_spec.variants[0]
    task["variant"] = statistics.name
    masked_reply(asking(**task), runtime, client)  # the control
    assert sums.asked == [purpose_of(statistics, run_spec, {})]


@pytest.mark.parametrize("method", ["fed-lda", "fed3r"])
def test_sites_that_get_other_numbers_take_part_in_other_sums(method: str) -> None:
    """Else a coordinator could make all features but one site's vanish, or weigh one site's a thousandfold."""
    sums = Sums()
    run_spec = run_spec_of(method=method)
    (statistics,) = (one for one in run_spec.variants if one.name != LabelCounts.name)
    counts = torch.tensor([1, 2, 3])
    of_all = {
        "standardization": {"mean": torch.zeros(4), "std": torch.ones(4)},
        "broadcast/label-counts": {"counts": counts},
    }
    of_one = [
        {**of_all, "standardization": {"mean": torch.zeros(4), "std": torch.full((4,), 1e30)}},
    ]
    if statistics.upload.question_needs:
        of_one.append({**of_all, "broadcast/label-counts": {"counts": counts.flip(0)}})
    client = small_client((2, 1, 1, 1), model="linear")
    runtime = runtime_of(sums, run_spec)
    for states in (of_all, of_all, *of_one):
        task = {"question": NONCE_QUESTION, "variant": statistics.name}
        masked_reply(asking(states, **task), runtime, client)
    assert sums.asked[0] == sums.asked[1] == purpose_of(statistics, run_spec, of_all)
    assert len({*sums.asked}) == 1 + len(of_one)
