"""Whole runs in one process: another seed is another run, and what leaves a client."""

from collections.abc import Callable

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
