"""Whole runs in one process: how clients run changes no bit, what may be left out is plain training, what leaves."""

from collections.abc import Callable

import pytest
from in_process import FinishedRun

from client_app.models import batch_norm_names, build
from server_app.checkpoint import Checkpoint

Train = Callable[..., FinishedRun]


def test_another_seed_is_another_run(train: Train) -> None:
    assert train("1", seed=1, rounds=1).hash != train("0", rounds=1).hash


def test_batch_norm_never_leaves_the_client(train: Train) -> None:
    outcome = train(method="fedbn")
    model = build("mlp-bn", (1, 8, 8), 10, 0)
    private, checkpoint = batch_norm_names(model), Checkpoint.load(outcome.folder.checkpoint_file)
    assert checkpoint.shared.keys() == model.state_dict().keys() - private
    assert checkpoint.memory_rounds == dict.fromkeys(range(4), 2)
    sent = 4 * sum(tensor.nbytes for tensor in checkpoint.shared.values())
    (record, _) = outcome.records
    assert record["bytes-up"] == record["bytes-down"] == sent


def test_participation_is_rounded_down_and_at_least_one(train: Train) -> None:
    for participation, count in ((0.74, 2), (0.75, 3), (0.01, 1)):
        outcome = train(f"{participation}", participation=participation, evaluate_every=0)
        assert [len(record["clients"]) for record in outcome.records] == [count] * 2


def test_every_client_is_sampled_in_time(train: Train) -> None:
    changes = {"participation": 0.5, "evaluate_every": 0, "local_steps": 1, "rounds": 8}
    sampled = [tuple(record["clients"]) for record in train(**changes).records]
    assert len(set(sampled)) > 2
    assert {client for clients in sampled for client in clients} == set(range(4))


@pytest.mark.parametrize(
    ("method", "setting"),
    [
        ("fedprox", "proximal__mu"),
        ("fedshift", "logit_shift__scale"),
        ("fed-focal", "focal__gamma"),
        ("fedlc", "logit_calibration__tau"),
    ],
)
def test_identity_settings_are_plain_training(train: Train, method: str, setting: str) -> None:
    identity = train("identity", method=method, **{setting: 0.0}, rounds=1)
    assert identity.hash == train("plain", rounds=1).hash
    assert train("effect", method=method, rounds=1).hash != identity.hash
