"""Runs whose clients have models of their own: what is shared, measured and refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import PLACES, FinishedRun, kill, small

from client_app.memory import load as load_memory
from client_app.metrics import evaluate_models
from client_app.personal import fine_tuned
from client_app.runtime import simulation_runtime
from client_app.state import State
from data import SettingError
from fedskew.cli.results_table import clients_tables, lines
from fedskew.engines.workers import WorkersGrid
from fedskew.formatting import percent
from server_app.checkpoint import latest
from server_app.record import Spread
from server_app.settings import parse

Train = Callable[..., FinishedRun]
SKEWED: dict[str, Any] = {"alpha": 0.1, "clients": 5, "rounds": 4, "train-images": 400}


def local_accuracy(run: FinishedRun, model: str = "average") -> Spread:
    """Return a model's accuracy on the clients' own class distributions, after the last round."""
    return run.folder.rounds()[-1].models[model].spreads["local-accuracy"]


def same(left: State, right: State) -> bool:
    return left.keys() == right.keys() and all(
        torch.equal(left[name], right[name]) for name in left
    )


@pytest.mark.parametrize("method", ["creff", "creff-code", "tau-norm"])
@pytest.mark.parametrize("own", ["fedper", "fedrep"])
def test_a_method_about_the_shared_head_is_refused_beside_own_heads(own: str, method: str) -> None:
    with pytest.raises(SettingError) as refused:
        parse({"method": f"{own}+{method}"})
    assert refused.value.key == "method"
    assert "keeps one on each client" in refused.value.rule
    assert parse({"method": f"fedbn+{method}", "model": "mlp-bn"}).parts.deploys


def test_features_that_do_not_train_leave_nothing_to_share() -> None:
    with pytest.raises(SettingError, match="none but the head trains") as refused:
        parse({"method": "fedper", "model": "linear"})
    assert refused.value.key == "model"
    assert parse({"method": "fedper", "model": "mlp-bn"}).general.model == "mlp-bn"


def test_a_new_site_has_no_head() -> None:
    scanners = {"dataset": "digits-scanners", "unseen-domain": "digits-noisy"}
    with pytest.raises(SettingError, match="leaves a new site without a head"):
        parse({**scanners, "method": "fedper"})
    assert parse({**scanners, "method": "fedbn"}).data.unseen_domain == "digits-noisy"


@pytest.mark.parametrize("method", ["fedper", "fedrep"])
def test_own_heads_know_their_clients_classes(train: Train, method: str) -> None:
    """Under label skew a client's own head is above the mean of all heads, at the worst client too."""
    own = local_accuracy(train("own", method=method, **SKEWED))
    shared = local_accuracy(train("shared", method="fedavg", **SKEWED))
    assert own.mean > shared.mean
    assert own.worst > shared.worst


def test_dittos_models_know_their_clients_classes_and_its_average_is_fedavgs(train: Train) -> None:
    """The average is measured by the server as FedAvg's is, each client's own model by the client."""
    shared = train("shared", method="fedavg", **SKEWED)
    run = train("own", method="ditto", **SKEWED)
    assert run.summary["hash"]["shared"] == shared.summary["hash"]["shared"]
    assert run.summary["rows"] == {"average": "fedavg", "personal-model": "ditto"}
    for record, other in zip(run.records, shared.records, strict=True):
        assert record["models"]["average"] == other["models"]["average"]
    assert local_accuracy(run, "personal-model").mean > local_accuracy(shared).mean
    assert local_accuracy(run, "personal-model").worst > local_accuracy(shared).worst


def test_dittos_model_of_a_client_that_never_trained_is_the_average(train: Train) -> None:
    """One client trains in the one round; the others have the shared model."""
    run = train("run", method="ditto", rounds=1, participation=0.25)
    own, average = (local_accuracy(run, name).values for name in ("personal-model", "average"))
    (record,) = run.records
    (trained,) = record["clients"]
    others = [number for number in range(4) if number != trained]
    assert [own[number] for number in others] == [average[number] for number in others]
    models = record["models"]
    assert models["personal-model"]["loss"] != models["average"]["loss"]


@pytest.mark.parametrize("method", ["fedper", "fedrep", "ditto"])
def test_a_killed_run_goes_on_to_the_same_hash(train: Train, tmp_path: Path, method: str) -> None:
    changes = {"method": method, "rounds": 4, "participation": 0.75}
    whole = train("whole", **changes)
    kill(tmp_path / "killed", "after the checkpoint", changes)
    resumed = train("killed", **changes)
    assert any("resuming after round" in line for line in resumed.lines)
    assert resumed.summary["hash"] == whole.summary["hash"]


METHODS_THAT_TRAIN = (
    "fedavg",
    "fedprox",
    "fedshift",
    "fedbn",
    "fedper",
    "creff",
    "scaffold",
    "singleset",
)


@pytest.mark.parametrize("method", METHODS_THAT_TRAIN)
def test_fine_tuning_adds_a_model_and_changes_nothing_else(train: Train, method: str) -> None:
    plain = train("plain", method=method)
    tuned = train("tuned", method=method, finetune_epochs=1)
    assert tuned.summary["hash"] == plain.summary["hash"]
    *before, last = tuned.records
    own = last["models"].pop("fine-tuned")
    assert len(own["local-accuracy"]["values"]) == 4
    last["line"] = plain.records[-1]["line"]
    # The shared model is measured by whom it was; fine-tuned ones by the clients.
    assert [*before, last] == plain.records
    row = tuned.summary["rows"]["fine-tuned"]
    assert row == f"{tuned.summary['rows']['average']}, fine-tuned"
    assert tuned.summary["models"]["fine-tuned"].keys() >= {"last", "best-test"}


def test_fine_tuned_models_know_their_clients_classes(train: Train) -> None:
    """Under label skew they are above the global model, at the worst client too."""
    run = train("run", finetune_epochs=2, **SKEWED)
    shared, own = local_accuracy(run), local_accuracy(run, "fine-tuned")
    assert own.mean > shared.mean
    assert own.worst > shared.worst


def test_a_fine_tuned_model_is_the_clients_own_training_of_the_last_average(train: Train) -> None:
    """Client 2's by hand, from the run's folder."""
    run = train("run", method="fedbn", finetune_epochs=2)
    settings = small(run.folder.path.parent, method="fedbn", finetune_epochs=2)
    checkpoint = latest(run.folder, print)
    assert checkpoint is not None
    runtime = simulation_runtime(settings.run_spec().to_json())
    memory = load_memory(runtime.memory_folder(2), 2)
    client = runtime.client(2, 2, checkpoint.shared, {}, memory)
    state = fine_tuned(client, runtime.run_spec.training)
    assert not same(state, runtime.model_state(checkpoint.shared, memory))
    (scores,) = evaluate_models(runtime.model, {"": state}, runtime.test_sets(2)["test"]).values()
    counts_C = torch.as_tensor(runtime.federation.counts_KC[2])
    recorded = local_accuracy(run, "fine-tuned").values[2]
    assert recorded == scores.local_accuracy(counts_C)


@pytest.mark.parametrize("place", PLACES)
def test_a_killed_run_fine_tunes_as_if_it_had_not_been(
    train: Train, tmp_path: Path, place: str
) -> None:
    changes = {"method": "fedbn", "rounds": 4, "participation": 0.75, "finetune_epochs": 1}
    whole = train("whole", **changes)
    kill(tmp_path / place, place, changes)
    resumed = train(place, **changes)
    assert resumed.records == whole.records
    assert resumed.summary["models"] == whole.summary["models"]


@pytest.mark.parametrize("method", ["fedper", "ditto"])
def test_workers_fine_tune_to_the_same_numbers(train: Train, method: str) -> None:
    changes = {"method": method, "finetune_epochs": 1}
    here = train("here", **changes)
    there = train("there", grid=WorkersGrid(2), **changes)
    assert here.records == there.records


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"method": "fedncm", "model": "linear", "rounds": 0}, "nobody trains with rounds = 0"),
        ({"schedule": "cosine", "schedule-rounds": 2, "rounds": 4}, "last round is 0"),
    ],
)
def test_fine_tuning_that_could_not_be_is_refused(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(SettingError) as refused:
        parse({**changes, "finetune-epochs": 1})
    assert refused.value.key == "finetune-epochs"
    assert rule in refused.value.rule
    assert parse({**changes, "finetune-epochs": 0}).training.finetune_epochs == 0
    assert parse({"rounds": 4, "finetune-epochs": 1}).training.finetune_epochs == 1


def test_draws_of_a_method_that_has_none_are_refused() -> None:
    drawn = {"finetune-epochs": 1, "finetune-sampling": "method"}
    with pytest.raises(SettingError) as refused:
        parse({"method": "fedprox", **drawn})
    assert refused.value.key == "finetune-sampling"
    assert "draws samples" in refused.value.rule
    assert parse({"method": "fedprox+iwds", **drawn}).training.finetune_sampling == "method"
    with pytest.raises(SettingError) as refused:
        parse({"method": "iwds", "finetune-sampling": "method"})
    assert "without finetune-epochs" in refused.value.rule


def test_the_last_table_has_every_model_at_every_client(train: Train) -> None:
    """Alone, global and personal side by side, and the worst client of each."""
    runs = {
        method: train("results", method=method, finetune_epochs=epochs, **SKEWED)
        for method, epochs in (("singleset", 0), ("fedavg", 1), ("fedper", 0))
    }
    planned = []
    summaries = {}
    for method, finished in runs.items():
        epochs = 1 if method == "fedavg" else 0
        settings = small(
            finished.folder.path.parent, method=method, finetune_epochs=epochs, **SKEWED
        )
        planned.append(settings)
        summaries[settings.run_id] = finished.summary
    (table,) = clients_tables(lines([], planned, summaries))
    assert [column.header for column in table.columns] == [
        "method", "seed", "mean", "worst client", *map(str, range(5))
    ]  # fmt: skip
    names, _, means, worst, *by_client = [list(column.cells) for column in table.columns]
    assert names == ["singleset", "fedavg", "fedavg, fine-tuned", "fedper"]
    values = local_accuracy(runs["fedavg"], "fine-tuned").values
    assert [cells[2] for cells in by_client] == [percent(value) for value in values]
    assert worst[2] == percent(min(values))
    assert means[2] == percent(sum(values) / 5)
    assert not clients_tables(lines([], planned[:1], summaries))
