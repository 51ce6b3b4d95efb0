"""The best round that keep-best kept, outside of the run: export, predict, the report and Python say which it is."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported_models import write_test_set
from in_process import KEEP_BEST, experiment, small
from safetensors.torch import load_file

import fedskew
from data import SettingError, federate
from fedskew.export.from_run import TrainedRun, export
from fedskew.export.model_folder import ModelFolder
from fedskew.export.predict import Inputs, Read, predict
from server_app.checkpoint import best_checkpoint
from server_app.run_folder import RunFolder

FEDAVG = {**KEEP_BEST, "method": "fedavg", "learning_rate": 0.3, "rounds": 3}
CREFF = {**KEEP_BEST, "method": "creff+fedshift", "learning_rate": 1.0, "rounds": 5}
FEDBN = {**KEEP_BEST, "method": "fedbn", "learning_rate": 0.3, "rounds": 3}
PLAIN = {**FEDAVG, "keep_best": "", "rounds": 2}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Finished runs whose best round is not the last, and one of FedAvg without keep-best."""
    folder = tmp_path_factory.mktemp("results")
    for changes in (FEDAVG, CREFF, FEDBN):
        experiment(folder, **changes)
    experiment(folder, **PLAIN)
    return folder


def folder_of(results: Path, changes: dict[str, Any]) -> RunFolder:
    return RunFolder(small(results, **changes).folder)


def kept_round(folder: RunFolder, model: str) -> dict[str, Any]:
    """Return the summary's entry of a model's best round."""
    summary = folder.summary()
    assert summary is not None
    entry: dict[str, Any] = summary["models"][model]["best"]
    assert entry["round"] < summary["rounds"]
    return entry


def test_both_rounds_are_exported_side_by_side(results):
    folder = folder_of(results, CREFF)
    for model in ("average", "creff"):
        last = TrainedRun(folder, model)
        best = TrainedRun(folder, model, round="best")
        files = [export(run, run.usual_folder)[0] for run in (last, best)]
        assert [file.parent.name for file in files] == [model, f"{model}-best"]
        round = kept_round(folder, model)["round"]
        state = load_file(files[1])
        deployed = best_checkpoint(folder, round).deployed[model]
        assert state.keys() == deployed.keys()
        assert all(torch.equal(state[name], deployed[name]) for name in state)
        assert any(not torch.equal(state[name], load_file(files[0])[name]) for name in state)
    rounds = {model: kept_round(folder, model)["round"] for model in ("average", "creff")}
    assert len({*rounds.values()}) == 2, "each model has a best round of its own"


def test_predictions_of_the_best_round_have_its_recorded_numbers(results, tmp_path):
    """Of FedBN: every client's kept tensors are those of that round, not of the last one."""
    changes = FEDBN
    folder = folder_of(results, changes)
    entry = kept_round(folder, "average")
    settings = small(results, **changes)
    samples = federate(settings.data, settings.general.seed).test(None, "cpu")
    read = Read(np.zeros(0), [str(number) for number in range(len(samples))], [])
    known = torch.ones(len(samples), dtype=torch.bool)
    inputs = Inputs(Path("digits"), samples, known, read)
    confusions: dict[str, Any] = {}
    for round in ("best", "last"):
        run = TrainedRun(folder, round=round)
        export(run, tmp_path / round)
        model = ModelFolder(tmp_path / round)
        total = torch.zeros(10, 10, dtype=torch.int64)
        for site in list(model.sites) or [""]:
            numbers = predict(model, inputs, site)[1]
            assert numbers is not None and numbers.confusion is not None
            total += torch.tensor(numbers.confusion)
        confusions[round] = total.tolist()
    last = folder.summary()["models"]["average"]["last"]
    assert confusions == {"best": entry["confusion"], "last": last["confusion"]}
    assert confusions["best"] != confusions["last"]


def test_the_commands_take_the_round_and_say_it(results, tmp_path, fedskew):
    folder = folder_of(results, FEDAVG)
    best = f"round {kept_round(folder, 'average')['round']}, the best by balanced-accuracy"
    output = tmp_path / "model"
    code, _, errors = fedskew("export", folder.path, "--round", "best", "--output", output)
    assert code == 0 and best in errors
    write_test_set(small(results, **FEDAVG).flat(), tmp_path / "test.npz")
    code, _, errors = fedskew("predict", output, tmp_path / "test.npz", "--json")
    assert code == 0 and best in errors


def test_a_round_that_is_not_there_is_refused(results):
    folder = folder_of(results, FEDAVG)
    plain = folder_of(results, PLAIN)
    assert TrainedRun(plain, round="last").best_by == ""
    for of_run, round in ((plain, "best"), (folder, "first")):
        with pytest.raises(SettingError):
            TrainedRun(of_run, round=round)


def test_python_gives_both_rounds(results, tmp_path):
    folder = folder_of(results, CREFF)
    result = fedskew.load(folder.path)
    assert result.numbers("best") == kept_round(folder, "creff")
    assert result.numbers()["balanced-accuracy"] == result.balanced_accuracy
    result.export(tmp_path / "model", round="best", model="average")
    about = ModelFolder(tmp_path / "model").description
    assert (about.model, about.round) == ("average", str(kept_round(folder, "average")["round"]))
    with pytest.raises(LookupError):
        fedskew.load(folder_of(results, PLAIN).path).numbers("best")


def test_the_report_takes_either_round(results, fedskew):
    words = ("report", "--results", str(results), "--round")
    _, printed, _ = fedskew(*words, "best", "--json")
    numbers = [number for report in json.loads(printed) for number in report["numbers"]]
    means = [number["mean"] for number in numbers if number["selection"] == "best"]
    for changes, model in ((FEDAVG, "average"), (CREFF, "creff")):
        entry = kept_round(folder_of(results, changes), model)
        assert pytest.approx(100 * entry["balanced-accuracy"]) in means
    assert fedskew(*words, "first")[0] == 2
