"""`head-start`: training begins with a head in closed form, to the bit, whatever the engine, and killed or not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message, RecordDict
from in_process import (
    FinishedRun,
    ManyNodes,
    TamperingGrid,
    cells_of,
    kill,
    number_of,
    small,
)

from client_app.messages import kind_of, unpack
from client_app.state import State
from data import SettingError
from fedskew.engines.local import LocalGrid
from fedskew.engines.workers import WorkersGrid
from fedskew.flower.plain_run import settings_of_server
from server_app.checkpoint import latest
from server_app.run_folder import RunFolder
from server_app.settings import parse
from strategies.fed3r import Fed3R

Train = Callable[..., FinishedRun]
HEADS = ("fed-lda", "fed-lda-pooled")
CHANGES: dict[str, Any] = {
    "model": "random-conv",
    "alpha": 0.1,
    "min_samples": 1,
    "train_images": 500,
    "test_images": 0,
    "clients": 5,
    "learning_rate": 0.01,
}
"""Features of digits that stay as they are, and clients that miss most classes."""


def deployed(outcome: FinishedRun, name: str) -> State:
    """Return a model of a finished run's last checkpoint."""
    checkpoint = latest(outcome.folder, print)
    assert checkpoint is not None
    return checkpoint.deployed[name]


def recalls(outcome: FinishedRun, name: str) -> list[float]:
    """Return a model's balanced accuracy by round."""
    return [record["models"][name]["balanced-accuracy"] for record in outcome.records]


@pytest.mark.parametrize("head", HEADS)
def test_round_one_begins_with_the_head_in_closed_form_to_the_bit(train: Train, head: str) -> None:
    sent: list[State] = []

    def look(asked: Message, records: RecordDict) -> None:
        if kind_of(asked) == "train" and number_of(asked) == 1:
            sent.append(unpack(asked.content.array_records["model"]))

    alone = deployed(train("alone", **CHANGES, method=head, rounds=0), head)
    for name, method in (("start", "fedshift"), ("beside", f"fedshift+{head}")):
        sent.clear()
        grid = TamperingGrid(look)
        outcome = train(name, grid=grid, **CHANGES, method=method, rounds=1, head_start=head)
        for key, tensor in alone.items():
            assert torch.equal(sent[0][key], tensor), key
        # One exchange of statistics, whether or not the head is deployed as well.
        asked = [kind_of(message) for message in grid.asked]
        questions = 3 if head == "fed-lda" else 2  # the class prior, perhaps counts, statistics
        assert asked.count("query") == questions
        assert (head in outcome.records[0]["models"]) == (name == "beside")
    assert not torch.equal(deployed(outcome, "average")["head.weight"], alone["head.weight"])


def test_one_round_does_not_destroy_the_head(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {**CHANGES, "method": "fedavg"}
    (before,) = recalls(train("alone", **{**changes, "method": "fed-lda"}, rounds=0), "fed-lda")
    started = recalls(train("started", **changes, head_start="fed-lda"), "average")
    plain = recalls(train("plain", **changes), "average")
    # On 500 digits 93 to 95 % of every class; random weights give less than half of it after two rounds.
    assert before > 0.9
    assert min(started) > before - 0.02
    assert max(plain) < before - 0.2
    # What the refusal of ridge scores is for: they are a good head, and one round takes it apart.
    monkeypatch.setattr(Fed3R, "no_start", "")
    (ridge,) = recalls(train("ridge", **{**changes, "method": "fed3r"}, rounds=0), "fed3r")
    of_ridge = recalls(train("from ridge", **changes, head_start="fed3r"), "average")
    assert of_ridge[0] < ridge - 0.1


@pytest.mark.parametrize("grid", [LocalGrid(faithful=True), ManyNodes(3), WorkersGrid(2)])
def test_every_engine_gives_the_same(train: Train, grid: Any) -> None:
    changes = {**CHANGES, "method": "scaffold+ccvr", "head_start": "fed-lda"}
    here = train("here", **changes)
    there = train("there", grid=grid, **changes)
    assert there.summary["hash"] == here.summary["hash"]
    assert here.hash != train("without", **{**changes, "head_start": ""}).hash


@pytest.mark.parametrize("round", [1, 3])
def test_a_run_that_is_killed_resumes_to_the_same(train: Train, tmp_path: Path, round: int) -> None:
    changes = {**CHANGES, "method": "fedavgm", "rounds": 4, "head_start": "fed-lda"}
    whole = train("whole", **changes)
    kill(tmp_path / "killed", "during training", changes, round=round)
    started = RunFolder(small(tmp_path / "killed", **changes).folder)
    checkpoint = latest(started, print)
    assert checkpoint is not None and checkpoint.round == round - 1
    grid = TamperingGrid()
    resumed = train("killed", grid=grid, **changes)
    assert "query" not in [kind_of(message) for message in grid.asked]
    assert resumed.summary["hash"] == whole.summary["hash"]
    assert resumed.records == whole.records


def test_only_runs_with_a_first_head_are_other_runs(tmp_path: Path) -> None:
    plain = small(tmp_path, **CHANGES)
    assert small(tmp_path, **CHANGES, head_start="").run_id == plain.run_id
    runs = {plain.run_id}
    for changes in (
        {"head_start": "fed-lda"},
        {"head_start": "fed-lda-pooled"},
        {"head_start": "fed-lda", "fed_lda__rho": "auto"},
        {"head_start": "fed-lda", "balanced_statistics__bits": 10},
    ):
        settings = small(tmp_path, **CHANGES, **changes)
        assert parse(settings.flat()).run_id == settings.run_id
        runs.add(settings.run_id)
    assert len(runs) == 5


def test_the_head_s_settings_count_in_an_experiment_of_other_methods(tmp_path: Path) -> None:
    settings = {"model": "linear", "head-start": "fed-lda", "fed-lda.rho": "auto"}
    cells = cells_of(tmp_path, methods=["fedavg", "fedshift", "fed-lda"], settings=settings)
    assert [cell.run.head_start.rho for cell in cells if cell.run.head_start] == ["auto"] * 3
    assert len({cell.run.run_id for cell in cells}) == 2  # fedavg and the head share a training
    del settings["head-start"]
    with pytest.raises(SettingError, match=r"fed-lda.rho .* has no effect"):
        cells_of(tmp_path, methods=["fedavg", "fedshift"], settings=settings)


def test_a_table_of_closed_heads_alone_has_nothing_that_starts(tmp_path: Path) -> None:
    settings = {"model": "linear", "head-start": "fed-lda"}
    assert cells_of(tmp_path, methods=["fedavg", "fed-lda", "fed3r"], settings=settings)
    assert cells_of(tmp_path, methods=["fed-lda", "fed3r"], settings={"model": "linear"})
    with pytest.raises(
        SettingError, match=r"head-start .* no effect on fed-lda and fed3r"
    ) as caught:
        cells_of(tmp_path, methods=["fed-lda", "fed3r"], settings=settings)
    assert caught.value.key == "head-start"


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"head-start": "fed3r"}, "head-start", ["fed-lda or fed-lda-pooled: fed3r", "no logits"]),
        ({"head-start": "fedncm"}, "head-start", ["fedncm has distances"]),
        ({"head-start": "fedcof"}, "head-start", ["depends on the partition"]),
        ({"head-start": "ccvr"}, "head-start", ["must be fed-lda or fed-lda-pooled"]),
        ({"model": "mlp-bn"}, "head-start", ["features that stay as they are"]),
        ({"model": "torchvision:resnet18"}, "head-start", ["features that stay as they are"]),
        ({"augmentation": "crop-flip"}, "augmentation", ["head-start = fed-lda", "as they are"]),
        ({"method": "fed-lda", "rounds": 0}, "head-start", ["rounds = 0", "nobody trains"]),
        ({"method": "singleset"}, "head-start", ["singleset, which shares no head"]),
        ({"method": "fedper"}, "model", ["none but the head trains"]),
        ({"fed-lda-pooled.rho": "auto"}, "fed-lda-pooled.rho", ["has no effect"]),
    ],
)
def test_settings_that_are_refused(changes: dict[str, Any], key: str, words: list[str]) -> None:
    good = {"dataset": "cifar10", "model": "random-conv", "method": "fedavg", "rounds": 2}
    good["head-start"] = "fed-lda"
    assert parse(good).head_start is not None
    with pytest.raises(SettingError) as caught:
        parse({**good, **changes})
    assert caught.value.key == key
    assert all(word in str(caught.value) for word in words), caught.value


def test_the_plain_protocol_refuses_it() -> None:
    good = {"dataset": "digits", "model": "random-conv", "method": "fedavg"}
    assert settings_of_server(good).head_start is None
    with pytest.raises(SettingError, match=r"head-start .* has no effect with protocol = plain"):
        settings_of_server({**good, "head-start": "fed-lda"})
