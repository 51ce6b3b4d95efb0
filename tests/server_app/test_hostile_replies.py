"""A site is a stranger: what it may send, what is refused and named, and what ends the run in a sentence."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message, MetricRecord, RecordDict
from in_process import FinishedRun, ManyNodes, Tamper, TamperingGrid, small

from client_app.handlers import ExpectedState
from client_app.messages import kind_of, pack, unpack
from client_app.models import build
from client_app.optimizer import coefficient_sum
from client_app.training import steps_of
from strategies.core.exchange import Exchange, TooFewReplies
from strategies.core.rounds import Rounds
from strategies.core.server import Diverged
from strategies.core.validation import RejectedUpdate, checked_metrics
from strategies.fedavg import FedAvg
from strategies.fednova import FedNova

Train = Callable[..., FinishedRun]
Change = Callable[[dict[str, torch.Tensor]], None]


def changed(kind: str, record: str, change: Change) -> Tamper:
    """Return a tampering with the tensors of a record in every reply of that kind."""

    def tamper(asked: Message, records: RecordDict) -> None:
        if kind_of(asked) == kind and record in records:
            state = {
                name: tensor.clone()
                for name, tensor in unpack(records.array_records[record]).items()
            }
            change(state)
            records[record] = pack(state)

    return tamper


class Impostor(ManyNodes):
    """Three nodes, the first of which also answers for a client that another one runs, and comes first."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(super().pull_messages(message_ids))
        first, others = replies[0], replies[1:]
        for reply in others:
            for name, record in list(reply.content.items()):
                if name.endswith("/model"):
                    forged = {n: torch.zeros_like(t) for n, t in unpack(record).items()}  # type: ignore[arg-type]
                    first.content[name] = pack(forged)
                elif "/" in name:
                    first.content[name] = record
        return replies


def test_a_node_answers_for_the_clients_it_was_asked_for(train: Train) -> None:
    honest = train("honest", grid=ManyNodes(3), clients=6)
    outcome = train("forged", grid=Impostor(3), clients=6)
    assert outcome.hash == honest.hash and outcome.summary["failures"] == 0


def test_strays_are_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    exchange = Exchange([0])
    exchange.sort(
        RecordDict({f"\x1b[31m{k}" * 40: MetricRecord({"a": 1}) for k in range(100)}), 7, {0}
    )
    (line,) = [record.getMessage() for record in caplog.records]
    assert len(line) < 400 and line.isprintable() and "100 records" in line


def test_the_round_goes_on_without_the_client_that_spoils_it(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values that pass alone, and whose weighted sum in float32 does not: FedNova divides by a small norm."""
    combine = FedNova.combine

    def overflowing(self: FedNova, server: Any, state: Any, updates: Any) -> Any:
        shared, state = combine(self, server, state, updates)
        if any(update.shared["head.weight"].abs().max() > 1e9 for update in updates):
            shared = {**shared, "head.weight": shared["head.weight"] * torch.inf}
        return shared, state

    monkeypatch.setattr(FedNova, "combine", overflowing)
    spoil = changed("train", "3/model", lambda s: s["head.weight"].fill_(9e9))
    outcome = train(grid=TamperingGrid(spoil), method="fednova", min_reply_share=0.5)
    assert outcome.records[0]["clients"] == [0, 1, 2]
    assert "model average: head.weight is not finite with it" in outcome.records[0]["failures"]["3"]
    with pytest.raises(Diverged) as ended:
        train("all", grid=TamperingGrid(spoil), method="fednova")
    assert ended.value.round == 1 and ended.value.client == "client 3"


def test_a_run_that_diverges_says_so_with_its_rate(train: Train) -> None:
    with pytest.raises(Diverged) as ended:
        train(learning_rate=1e4, rounds=4, momentum=0.99)
    assert "learning-rate = 10000" in ended.value.remedy


def invented(state: dict[str, torch.Tensor]) -> None:
    """Replace a client's scores by those of a perfect model on another test set."""
    state["confusion"] = torch.eye(10).long() * 1000
    state["loss"], inside = torch.zeros(()).double(), torch.zeros(15).double()
    inside[-1] = 10_000
    state["calibration"] = torch.stack([inside, inside, inside])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (invented, "evaluation: the scores are over"),
        (lambda state: state["loss"].neg_(), "evaluation: "),
    ],
)
def test_scores_that_cannot_be_are_left_out_and_the_model_stays(
    train: Train, change: Change, reason: str
) -> None:
    grid = TamperingGrid(changed("evaluate", "1/test/average", change))
    outcome = train(grid=grid, method="fedbn", min_reply_share=0.75, rounds=1)
    (record,) = outcome.records
    assert list(record["failures"]) == ["1"] and record["failures"]["1"].startswith(reason)
    values = record["models"]["average"]["client-accuracy"]["values"]
    assert [value is None for value in values] == [False, True, False, False]
    assert outcome.hash == train("honest", method="fedbn", rounds=1).hash


def test_the_samples_of_a_client_are_what_it_said_first(tmp_path: Path) -> None:
    """Where the server has no view of the data, as between hospitals: a later number is refused."""
    settings = small(tmp_path)
    strategy = Rounds(
        build("mlp-bn", (1, 8, 8), 10, 0), settings.run_spec(), clients=2, combine=FedAvg()
    )
    strategy.begin_round(1)
    steps = steps_of(50, settings.training)
    metrics = {"num-examples": 50, "loss": 1.0, "steps": steps, "seconds": 0.0}
    metrics["coefficient-sum"] = coefficient_sum(steps, settings.training.momentum)
    assert checked_metrics(0, metrics, strategy.server) == 50
    strategy.client_states[0] = ExpectedState(examples=50)
    # Answers to the last question are compared with it, also where there was one round alone.
    assert strategy.known_examples() == {0: 50}
    strategy.begin_round(2)
    assert checked_metrics(0, metrics, strategy.server) == 50
    with pytest.raises(RejectedUpdate):
        checked_metrics(0, {**metrics, "num-examples": 60}, strategy.server)


def without_answer(asked: Message, records: RecordDict) -> None:
    if kind_of(asked) == "query":
        records["1/upload/other"] = records.pop("1/upload/class-statistics")


def statistics(change: Change) -> Tamper:
    return changed("query", "1/upload/class-statistics", change)


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (without_answer, "the reply holds no answer for class-statistics"),
        (statistics(lambda s: s["means"].mul_(torch.nan)), "means is not finite"),
        (statistics(lambda s: s["covariances"][0].neg_()), "a variance is negative"),
        (statistics(lambda s: s["counts"][0].add_(10**6)), "counts are of 10000"),
    ],
)
def test_a_wrong_answer_to_the_last_question_is_left_out(
    train: Train, tamper: Tamper, reason: str
) -> None:
    changes = {"method": "ccvr", "rounds": 1, "local_epochs": 1}
    outcome = train(grid=TamperingGrid(tamper), min_reply_share=0.75, **changes)
    (record,) = outcome.records
    assert list(record["failures"]) == ["1"] and reason in record["failures"]["1"]
    with pytest.raises(TooFewReplies):
        train("strict", grid=TamperingGrid(tamper), **changes)
