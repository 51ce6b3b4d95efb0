"""The numbers behind the tables, from hand-made confusion matrices."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from client_app.metrics import BINS, Scores, evaluate_models
from client_app.models import build
from client_app.ranking import contradiction, ranking
from client_app.state import State
from data import DataSettings, federate
from data.samples import SampleCache
from server_app.composition import compose, row_name
from server_app.evaluation import (
    by_group,
    local_accuracies,
    metrics_from,
    of_clients,
    of_server,
    shot_groups,
    sizes,
    spread,
    worth,
)
from server_app.predictions import read_predictions, write_predictions
from server_app.record import ModelNumbers, RoundRecord, Spread, to_json
from server_app.round_selection import summarize
from server_app.run_folder import RunFolder


def scores(confusion: list[list[int]], loss: float = 1.0) -> Scores:
    """Return scores whose confidence is 0.9 throughout."""
    table = torch.tensor(confusion)
    total, correct = table.sum().item(), table.diagonal().sum().item()
    calibration = torch.zeros(3, BINS).double()
    calibration[:, int(0.9 * BINS)] = torch.tensor([total, correct, 0.9 * total]).double()
    sums = (
        torch.tensor(loss).double(),
        calibration,
        torch.tensor(0.0).double(),
        torch.zeros(len(table), 8).double(),
    )
    return Scores(table, *sums)


def test_metrics_by_hand() -> None:
    actual = metrics_from(
        scores([[8, 2, 0], [1, 3, 0], [0, 1, 5]], loss=10.0), {"many": [0, 1], "few": [2]}
    )
    recall = [0.8, 0.75, 5 / 6]
    assert actual.recall == pytest.approx(recall)
    assert actual["accuracy"] == pytest.approx(16 / 20)
    assert actual["balanced-accuracy"] == pytest.approx(sum(recall) / 3)
    assert actual["macro-f1"] == pytest.approx((16 / 19 + 6 / 10 + 10 / 11) / 3)
    assert actual["loss"] == pytest.approx(0.5)
    assert actual["calibration-error"] == pytest.approx(0.1)
    assert actual["many-recall"] == pytest.approx(0.775) and actual["few-recall"] == pytest.approx(
        5 / 6
    )


def test_class_without_test_samples() -> None:
    actual = metrics_from(
        scores([[3, 1, 0], [0, 0, 0], [0, 0, 4]]), {"medium": [1], "many": [0, 1]}
    )
    assert actual["balanced-accuracy"] == pytest.approx((0.75 + 1) / 2)
    assert actual["macro-f1"] == pytest.approx((6 / 7 + 1) / 2)
    assert math.isnan(actual.recall[1]) and math.isnan(actual["medium-recall"])
    assert actual["many-recall"] == 0.75
    content = json.loads(json.dumps(to_json(actual), allow_nan=False))
    assert content["recall"] == [0.75, None, 1.0] and content["medium-recall"] is None


def test_scores_add_up() -> None:
    left, right = scores([[3, 1], [2, 2]], 2.0), scores([[1, 0], [5, 4]], 3.0)
    together, union = metrics_from(left + right), metrics_from(scores([[4, 1], [7, 6]], 5.0))
    assert together.means == pytest.approx(
        union.means, nan_ok=True
    ) and together.recall == pytest.approx(union.recall)
    pooled = of_clients({4: left, 7: right}, torch.tensor([[1, 1]] * 8), {})
    assert pooled["accuracy"] == together["accuracy"]
    values = pooled.spreads["client-accuracy"].values
    assert [values[4], values[7]] == pytest.approx([5 / 8, 0.5]) and len(values) == 8
    assert [k for k in range(8) if math.isnan(values[k])] == [
        0,
        1,
        2,
        3,
        5,
        6,
    ]  # who was not measured keeps a place


def test_client_evaluation_uses_each_clients_own_classes() -> None:
    actual = of_clients(
        {1: scores([[4, 0], [2, 2]]), 0: scores([[0, 4], [0, 4]])},
        torch.tensor([[1, 3], [3, 1]]),
        {},
    )
    assert actual.spreads["local-accuracy"].values == pytest.approx([0.75, 0.75 + 0.125])


def test_local_accuracy() -> None:
    counts_KC = torch.tensor([[10, 0, 0], [5, 5, 10], [0, 0, 1]])
    assert local_accuracies([0.5, 1.0, 0.1], counts_KC) == pytest.approx(
        [0.5, 0.25 * 0.5 + 0.25 + 0.05, 0.1]
    )


def test_local_accuracy_without_test_samples_of_a_class() -> None:
    actual = local_accuracies([0.5, math.nan, 0.1], torch.tensor([[3, 4, 1], [0, 2, 0]]))
    assert actual[0] == pytest.approx((3 * 0.5 + 0.1) / 4) and math.isnan(actual[1])


def test_server_evaluation_has_local_accuracy() -> None:
    actual = of_server(scores([[4, 0], [2, 2]]), torch.tensor([[1, 3], [3, 1]]), {"few": [1]})
    assert actual.spreads["local-accuracy"].mean == pytest.approx(0.75)
    assert actual["few-recall"] == 0.5


def test_spread() -> None:
    values = [index / 20 for index in reversed(range(20))]
    actual = spread(values)
    assert actual == Spread(pytest.approx(0.475), 0.0, pytest.approx(0.025), values)
    assert spread([0.3]).worst_decile == 0.3
    assert spread([k / 10 for k in range(19)]).worst_decile == 0.0  # a tenth of 19 is one client
    assert spread([0.4, math.nan, 0.2]).mean == pytest.approx(0.3)
    assert math.isnan(spread([math.nan]).worst)


@pytest.mark.parametrize(
    ("counts", "long_tailed", "groups"),
    [
        ([5000] * 10, False, {}),
        (
            [50, 40, 30, 25, 20, 15, 10, 8, 6, 5],
            True,
            {"many": [0, 1, 2], "medium": [3, 4, 5, 6], "few": [7, 8, 9]},
        ),
        ([101, 100, 20, 19], True, {"many": [0], "medium": [1, 2], "few": [3]}),
        ([500, 200], True, {"many": [0, 1]}),
    ],
)
def test_shot_groups(counts: list[int], long_tailed: bool, groups: dict[str, list[int]]) -> None:
    assert shot_groups(counts, long_tailed) == groups


def test_imagenet_lt_has_shot_groups_without_a_cut() -> None:
    assert DataSettings("imagenet-lt").long_tailed
    assert DataSettings("cifar10", imbalance_factor=10).long_tailed
    assert not DataSettings("cifar10").long_tailed


def test_numbers_by_class_have_means_over_shot_groups() -> None:
    numbers = {"matching-loss": 7.0, "matching-loss-by-class": [0.1, 0.3, math.nan, math.nan]}
    means = by_group(numbers, {"many": [0, 1], "medium": [1, 2], "few": [3]})
    assert means == pytest.approx(
        {"matching-loss-many": 0.2, "matching-loss-medium": 0.3, "matching-loss-few": math.nan},
        nan_ok=True,
    )
    others = {"loss-by-class": 0.5, "class-weights": [1.0, 2.0, 3.0, 4.0]}
    assert by_group(others, {"many": [0, 1]}) == {}


@pytest.mark.parametrize(
    ("method", "deployed", "row"),
    [
        ("fedavg", "average", "fedavg"),
        ("creff", "average", "fedavg"),
        ("creff", "creff", "creff"),
        ("creff+fedbn", "average", "fedbn"),
        ("creff+fedbn", "creff", "fedbn+creff"),
        ("tau-norm+fedshift", "average", "fedshift"),
        ("tau-norm+fedshift", "tau-norm", "fedshift+tau-norm"),
        ("creff+ccvr+tau-norm", "average", "fedavg"),
        ("creff+ccvr+tau-norm", "creff", "creff"),
        ("creff+ccvr+tau-norm", "ccvr", "ccvr"),
        ("creff+ccvr+tau-norm", "tau-norm", "tau-norm"),
        ("creff+fedshift+tau-norm", "tau-norm-0.5", "fedshift+tau-norm-0.5"),
        ("feddf+real-features", "average", "feddf"),
        ("feddf+real-features", "real-features", "real-features+feddf"),
        ("iwds+fedbn+fedshift", "average", "fedshift+fedbn+iwds"),
    ],
)
def test_row_names(method: str, deployed: str, row: str) -> None:
    assert row_name(compose(method), deployed) == row


def record(round: int, **means: float) -> RoundRecord:
    return RoundRecord(round, {"average": ModelNumbers(means, [0.5])} if means else {})


def test_summary_names_last_best_and_means() -> None:
    accuracies = [0.1, 0.9, 0.2, 0.3, 0.4, 0.5, 0.6]
    records = [
        record(k + 1, **{"balanced-accuracy": a, "loss": 1.0}) for k, a in enumerate(accuracies)
    ]
    actual = summarize([*records, record(8)])["average"]
    assert actual["last"]["balanced-accuracy"] == 0.6
    assert (actual["best-test"]["round"], actual["best-test"]["balanced-accuracy"]) == (2, 0.9)
    assert actual["mean-of-last-5"]["balanced-accuracy"] == pytest.approx(0.4)
    assert actual["mean-of-last-10"]["balanced-accuracy"] == pytest.approx(3 / 7)
    assert summarize([]) == {} == summarize([record(1)])


def test_summary_of_a_run_that_diverged_for_a_while() -> None:
    records = [
        record(1, **{"balanced-accuracy": 0.1, "loss": math.nan}),
        record(2, **{"balanced-accuracy": 0.3, "loss": 1.5}),
        record(3, **{"balanced-accuracy": math.nan, "loss": 1.5}),
    ]
    actual = summarize(records[:2])["average"]
    assert actual["mean-of-last-5"] == {"balanced-accuracy": pytest.approx(0.2), "loss": None}
    assert summarize(records)["average"]["best-test"]["round"] == 2


def test_rounds_file_survives_a_cut_line(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for number in (1, 2, 3):
        folder.add_round(RoundRecord(number, loss=math.inf))
    with folder.rounds_file.open("a") as file:
        file.write('{"round": 4, "lo')
    assert [record.round for record in folder.rounds()] == [1, 2, 3]
    folder.cut_after(2)
    folder.add_round(RoundRecord(3, loss=0.5))
    assert [(record.round, to_json(record.loss)) for record in folder.rounds()] == [
        (1, None),
        (2, None),
        (3, 0.5),
    ]


def patients(tmp_path: Path, as_one: bool) -> DataSettings:
    """Two classes, 5 patients of each with 8 test images, of which one of class 0 has 16; as an npz file."""
    draws, path = np.random.default_rng(0), tmp_path / f"as-one-{as_one}.npz"
    sizes = [16, 8, 8, 8, 8, *[8] * 5]
    subject_N = np.repeat(np.arange(10), sizes)
    arrays: dict[str, np.ndarray] = {}
    for key, first in (("train", 100), ("test", 0)):
        arrays[f"{key}_images"] = draws.random((len(subject_N), 6), np.float32)
        arrays[f"{key}_labels"] = (subject_N >= 5).astype(int)
        if key == "train" or as_one:
            arrays[f"{key}_subjects"] = subject_N + first
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return DataSettings(
        dataset=f"npz:{path}", classes="well,ill", input_shape="6", clients=2, partition="iid"
    )


def test_a_report_s_sampling_unit_is_the_subject(tmp_path: Path) -> None:
    """88 rows of 10 patients are worth 10 where patients are tested as one, else what 8 alike are worth: not 88."""
    tested_as_one = sizes(federate(patients(tmp_path, True), 0))
    assert tested_as_one is not None and tested_as_one["test"] == [48, 40]
    assert tested_as_one["tested"] == tested_as_one["independent"] == [5, 5]
    assert tested_as_one["subjects"] == [[5, 5], [5, 5]], "both clients have rows of every patient"
    federation = federate(patients(tmp_path, False), 0)
    unknown = sizes(federation)
    assert unknown is not None and "independent" not in unknown, "nobody knows whose they are"
    subjects = np.repeat(np.arange(10), [16, *[8] * 9])
    known = sizes(replace(federation, dataset=replace(federation.dataset, test_subjects=subjects)))
    assert known is not None and known["tested"] == known["test"] == [48, 40]
    assert known["independent"] == [round(48**2 / (16**2 + 4 * 8**2)), 5]
    assert worth(np.arange(7), False) == 7 and worth(np.zeros(0, int), False) == 0
    assert worth(np.zeros(5, int), False) == 1


def test_clients_that_know_their_patients_state_a_larger_error(tmp_path: Path) -> None:
    """Eight copies of every sample, of one subject each: the AUROC's error is that without the copies."""
    draws = torch.Generator().manual_seed(0)
    labels_N = torch.arange(40) % 2
    logits_NC = torch.randn(40, 2, generator=draws).double() + torch.eye(2).double()[labels_N]
    log_NC = logits_NC.log_softmax(1)
    alone = ranking(log_NC, labels_N)
    copies = [part.repeat_interleave(8, 0) for part in (log_NC, labels_N, torch.arange(40))]
    errors = {
        name: (sums[:, 2].sqrt() / sums[:, 0]).tolist()
        for name, sums in {
            "alone": alone,
            "rows": ranking(copies[0], copies[1]),
            "subjects": ranking(*copies),
        }.items()
    }
    assert errors["subjects"] == pytest.approx(errors["alone"], abs=1e-9)
    assert errors["rows"][0] < errors["alone"][0] / 2
    one_each = ranking(copies[0], copies[1], copies[1])
    assert contradiction(one_each, torch.tensor([160, 160])) == "", "one subject of each class"
    assert contradiction(ranking(*copies), torch.tensor([160, 160])) == ""


def test_the_server_keeps_the_subjects_of_what_it_tested(tmp_path: Path) -> None:
    federation = federate(patients(tmp_path, False), 0)
    subjects = np.repeat(np.arange(10), [16, *[8] * 9])
    data = replace(federation.dataset, test_subjects=subjects)
    samples = replace(federation, dataset=data, _cache=SampleCache()).test()
    assert samples.subjects_N is not None and samples.groups_N is None
    assert torch.equal(samples.only(torch.tensor([0, 87])).subjects_N, torch.tensor([0, 9]))
    kept: dict[str, State] = {}
    model = build("abide-mlp", (6,), 2, 0)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    evaluate_models(model, {"average": state}, samples, kept)
    folder = RunFolder(tmp_path)
    write_predictions(folder, kept)
    said = read_predictions(folder, "average")
    assert said is not None and said.subjects_N is not None
    assert np.array_equal(said.subjects_N, subjects)
