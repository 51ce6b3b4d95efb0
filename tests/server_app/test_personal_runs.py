"""Runs whose clients have models of their own: what is shared, measured and refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from in_process import FinishedRun, small

from client_app.memory import load as load_memory
from client_app.metrics import evaluate_models, local_accuracies
from client_app.personal import fine_tuned
from client_app.runtime import simulation_runtime
from data import SettingError
from server_app.checkpoint import latest
from server_app.record import Spread
from server_app.settings import parse

Train = Callable[..., FinishedRun]
SKEWED: dict[str, Any] = {"alpha": 0.1, "clients": 5, "rounds": 4, "train-images": 400}


def local_accuracy(run: FinishedRun, model: str = "average") -> Spread:
    """Return a model's accuracy on the clients' own class distributions, after the last round."""
    return run.folder.rounds()[-1].models[model].spreads["local-accuracy"]


@pytest.mark.parametrize("method", ["fedper+creff", "fedrep+tau-norm"])
def test_an_own_head_is_refused_where_a_shared_one_is_needed(method: str) -> None:
    with pytest.raises(SettingError) as refused:
        parse({"method": method, "model": "mlp-bn"})
    assert refused.value.key == "method"
    with_shared_head = method.replace("fedper", "fedbn").replace("fedrep", "fedbn")
    assert parse({"method": with_shared_head, "model": "mlp-bn"})


def test_own_models_know_their_clients_classes_and_dittos_average_is_fedavgs(train: Train) -> None:
    """Under label skew they are above the shared model, at the worst client too; ditto's average is the server's."""
    shared = train("shared", method="fedavg", finetune_epochs=2, **SKEWED)
    ditto = train("ditto", method="ditto", **SKEWED)
    for own in (
        local_accuracy(train("fedper", method="fedper", **SKEWED)),
        local_accuracy(ditto, "personal-model"),
        local_accuracy(shared, "fine-tuned"),
    ):
        assert own.mean > local_accuracy(shared).mean
        assert own.worst > local_accuracy(shared).worst
    assert ditto.summary["hash"]["shared"] == shared.summary["hash"]["shared"]
    assert ditto.summary["rows"] == {"average": "fedavg", "personal-model": "ditto"}


@pytest.mark.parametrize("method", ["fedbn", "singleset"])
def test_fine_tuning_adds_a_model_and_changes_nothing_else(train: Train, method: str) -> None:
    """The shared model is measured by whom it was without it; fine-tuned ones by the clients."""
    plain = train("plain", method=method)
    tuned = train("tuned", method=method, finetune_epochs=1)
    assert tuned.summary["hash"] == plain.summary["hash"]
    *before, last = tuned.records
    assert len(last["models"].pop("fine-tuned")["local-accuracy"]["values"]) == 4
    last["line"] = plain.records[-1]["line"]
    assert [*before, last] == plain.records


def test_a_fine_tuned_model_is_the_clients_own_training_of_the_last_average(train: Train) -> None:
    """Client 2's by hand, from the run's folder."""
    changes = {"method": "fedbn", "finetune_epochs": 2, "rounds": 1}
    run = train("run", **changes)
    checkpoint = latest(run.folder, print)
    assert checkpoint is not None
    spec = small(run.folder.path.parent, **changes).run_spec()
    runtime = simulation_runtime(spec.to_json())
    memory = load_memory(runtime.memory_folder(2), 1)
    client = runtime.client(2, 1, checkpoint.shared, {}, memory)
    runtime.load(client)
    state = fine_tuned(client, runtime.run_spec.training, ())
    untuned = runtime.model_state(checkpoint.shared, memory)
    assert not all(torch.equal(state[name], untuned[name]) for name in untuned)
    (scores,) = evaluate_models(runtime.model, {"": state}, runtime.test_sets(2)["test"]).values()
    counts_C = torch.as_tensor(runtime.federation.counts_KC[2])
    confusion_CC = scores.confusion_CC.double()
    recall = (confusion_CC.diagonal() / confusion_CC.sum(1)).tolist()
    (expected,) = local_accuracies(recall, counts_C[None])
    assert local_accuracy(run, "fine-tuned").values[2] == expected
