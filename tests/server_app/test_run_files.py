"""The files of one finished run, read by many tests: records, summary, settings, checkpoints, kept predictions."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flwr.app import Message, RecordDict
from in_process import FinishedRun, TamperingGrid, cut, drop, experiment, small

from client_app.metrics import Scores
from client_app.tensor_files import read
from data import federate, load
from server_app import run_folder
from server_app.evaluation import metrics_from
from server_app.record import ModelNumbers, RoundRecord, Spread
from server_app.run_folder import RunFolder
from strategies.core.update_statistics import Seconds, UpdateStatistics

Train = Callable[..., FinishedRun]
CHANGES = {"method": "creff+fedshift", "validation_fraction": 0.2, "evaluate_every": 2, "rounds": 3}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Three rounds, of which the second and the last are evaluated."""
    return experiment(tmp_path_factory.mktemp("finished"), **CHANGES)


# ---- one finished run ------------------------------------------------------------------------------------------------


def test_settings_json_holds_settings_versions_and_data(finished: FinishedRun) -> None:
    origin = json.loads(finished.folder.settings_file.read_text())
    assert origin["settings"]["logit-shift.smoothing"] == 1.0
    assert origin["versions"]["torch"] and origin["versions"]["code"]
    assert origin["partition-hash"] == finished.summary["partition-hash"]
    counts_KC = federate(small(finished.folder.path.parent, **CHANGES).data, 0).counts_KC
    assert origin["samples"]["train"] == counts_KC.tolist()


def test_records_and_summary_agree(finished: FinishedRun) -> None:
    assert [record["evaluated-by"] for record in finished.records] == ["nobody", "server", "server"]
    assert [sorted(record["models"]) for record in finished.records[:2]] == [
        [],
        ["average", "creff"],
    ]
    assert finished.folder.summary() == json.loads(json.dumps(finished.summary))
    for name, selections in finished.summary["models"].items():
        assert selections["last"] == finished.records[-1]["models"][name]
        measured = [record["models"][name]["validation"] for record in finished.records[1:]]
        accuracies = [numbers["balanced-accuracy"] for numbers in measured]
        assert selections["best-validation"]["round"] == 2 + accuracies.index(max(accuracies))


def test_kept_predictions_have_the_run_s_numbers(finished: FinishedRun) -> None:
    recorded = finished.records[-1]["models"]["creff"]
    data = load(small(finished.folder.path.parent, **CHANGES).data)
    kept = finished.folder.predictions("creff")
    assert kept is not None
    scores = Scores.of_probabilities(*map(torch.from_numpy, kept))
    assert recorded["confusion"] == scores.confusion_CC.tolist()
    assert recorded["auroc"] == pytest.approx(metrics_from(scores)["auroc"])
    tensors, _ = read(finished.folder.predictions_file)
    numbers = tensors["creff/samples"].tolist()
    assert kept.labels_N.tolist() == data.test.labels[numbers].tolist()
    assert len(set(numbers)) == len(kept.labels_N)
    assert finished.folder.predictions("ccvr") is None


def test_predictions_that_are_too_large_or_damaged_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path)

    def outputs() -> dict[str, torch.Tensor]:
        return {"log-probabilities": torch.zeros(4, 2).double(), "labels": torch.zeros(4).long()}

    for most, kept in ((95, False), (96, True)):
        monkeypatch.setattr(run_folder, "LARGEST_PREDICTIONS", most)
        folder.write_predictions({"average": outputs()})
        assert (folder.predictions("average") is not None) == kept
    cut(folder.predictions_file, 8)
    assert folder.predictions("average") is None


# ---- a round's record ------------------------------------------------------------------------------------------------

NUMBERS = ModelNumbers(
    {"balanced-accuracy": 0.5, "loss": 2.5},
    [0.5, 1.0],
    {"client-accuracy": Spread(0.5, 0.25, 0.25, [0.75, 0.25])},
    ModelNumbers({"balanced-accuracy": 0.75}, [0.25]),
)
FULL = RoundRecord(
    round=3,
    models={"average": NUMBERS},
    evaluated_by="clients",
    loss=0.5,
    clients=[0, 2],
    used=2,
    failures={1: "no reply"},
    failed=1,
    bytes_down=7,
    bytes_up=5,
    seconds=Seconds(1.0, 0.75, 0.5, 0.25, 2.0),
    workers=[{"process": 1, "device": "cpu"}],
    updates=[UpdateStatistics(0, 1.5, -0.25, 40)],
    median_norm=1.5,
    line="round 3",
    metrics={"matching-loss": 0.25, "class-weights": [1.0, 2.0]},
)


def test_a_record_comes_back_from_json() -> None:
    written = json.loads(json.dumps(FULL.to_json(), allow_nan=False))
    assert RoundRecord.of(written) == FULL and FULL.shortened() == FULL
    assert written["models"]["average"]["client-accuracy"]["worst-decile"] == 0.25
    assert "method-numbers" not in RoundRecord(1).to_json(), "what is not there has no key"


def test_what_is_no_number_is_null() -> None:
    numbers = ModelNumbers({"auroc": math.nan}, [math.inf])
    written = RoundRecord(1, {"average": numbers}, metrics={"x": [math.nan, 1.0]}).to_json()
    assert (written["loss"], written["x"]) == (None, [None, 1.0])
    assert written["models"]["average"] == {"auroc": None, "recall": [None]}
    again = RoundRecord.of(written)
    assert math.isnan(again.loss) and math.isnan(again.models["average"]["auroc"])


def test_records_survive_a_cut_line(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for number in (1, 2, 3):
        folder.add_round(RoundRecord(number))
    with folder.rounds_file.open("a") as file:
        file.write('{"round": 4, "lo')
    assert [record.round for record in folder.rounds()] == [1, 2, 3]
    folder.cut_after(2)
    folder.add_round(RoundRecord(3, loss=0.5))
    assert [record.round for record in folder.rounds()] == [1, 2, 3]
    assert folder.rounds()[-1].loss == 0.5


def test_a_record_of_very_many_clients_is_short() -> None:
    """Its means and its medians are of all clients all the same."""
    many = 3_000
    spread = Spread(0.5, 0.0, 0.05, [(7 * k % many) / many for k in range(many)])
    whole = RoundRecord(
        1,
        {"average": ModelNumbers({}, [], {"local-accuracy": spread})},
        clients=list(range(many)),
        failures=dict.fromkeys(range(many), "no reply"),
        updates=[UpdateStatistics(k, 0.1 + k, k / many, 40) for k in range(many)],
    )
    short = whole.shortened()
    assert (short.used, short.failed, len(short.updates)) == (many, many, 100)
    assert len(short.clients) == len(short.failures) == 100
    values = short.models["average"].spreads["local-accuracy"]
    assert dataclasses.replace(values, values=()) == dataclasses.replace(spread, values=())
    assert len(values.values) == 100 and values.values[50] == pytest.approx(0.505, abs=0.001)
    assert max(update.norm for update in short.updates) == many - 1 + 0.1
    assert short.median_norm == pytest.approx(0.1 + (many - 1) / 2, abs=0.5)


def test_a_run_of_many_clients_counts_them_all(train: Train) -> None:
    def lose(asked: Message, records: RecordDict) -> None:
        for client in range(12):
            drop(records, client)

    data = {"clients": 112, "alpha": 100.0, "train_images": 336, "min_samples": 1}
    changes = {**data, "local_steps": 1, "min_reply_share": 0.5, "rounds": 1}
    outcome = train(grid=TamperingGrid(lose), **changes)
    (record,) = outcome.folder.rounds()
    assert (record.used, len(record.clients)) == (100, 100)
    assert (record.failed, outcome.summary["failures"]) == (12, 12)
