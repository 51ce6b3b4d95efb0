"""A federation whose test samples are windows of subjects: every number is of subjects, site by site."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import FinishedRun, TamperingGrid, small
from rich.console import Console
from sklearn.metrics import accuracy_score, roc_auc_score

from client_app.messages import kind_of, pack, unpack
from client_app.models import build
from client_app.runtime import initial_seed
from data import federate
from fedskew.cli.results_table import lines, results_table
from fedskew.engines.local import LocalGrid
from server_app.checkpoint import Checkpoint

Train = Callable[..., FinishedRun]
SITES = ("NYU", "UM_1", "USM", "UCLA_1")
ABIDE: dict[str, Any] = {
    "dataset": "abide", "input_shape": "10", "window_stride": 2, "model": "abide-mlp", "rounds": 3, "local_epochs": 1,
    "clients": 0, "train_images": 0, "test_images": 0, "alpha": 0.1, "min_samples": 10,
}  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Four sites of 20 to 50 subjects; those of the last all have autism."""
    draws = np.random.default_rng(0)
    (tmp_path / "abide").mkdir()
    for number, site in enumerate(SITES):
        subjects = 50 - 10 * number
        length = draws.integers(40, 60, subjects)
        label = np.ones(subjects, int) if site == SITES[-1] else np.arange(subjects) % 2
        np.savez(
            tmp_path / f"abide/{site}.npz",
            ts=draws.normal(size=(length.sum(), 5)),
            length=length,
            label=label,
        )
    return str(tmp_path)


def test_a_run_s_numbers_are_those_of_its_subjects(train: Train, root: str) -> None:
    """Against a loop over the subjects with the model of the last round, and scikit-learn."""
    outcome = train(method="fedavg", data_root=root, **ABIDE)
    federation = federate(small(Path(root), method="fedavg", data_root=root, **ABIDE).data, 0)
    model = build("abide-mlp", (10,), 2, initial_seed(0)).eval()
    model.load_state_dict(Checkpoint.load(outcome.folder.checkpoint_file).shared)
    truths, positives = [], []
    for client in range(4):
        samples = federation.test(client)
        assert samples.groups_N is not None
        with torch.no_grad():
            p_N = torch.softmax(model(samples.batch(torch.arange(len(samples)))).double(), 1)[
                :, 1
            ].numpy()
        groups, labels = samples.groups_N.numpy(), samples.labels_N.numpy()
        truths.append([labels[groups == subject][0] for subject in np.unique(groups)])
        positives.append([p_N[groups == subject].mean() for subject in np.unique(groups)])
    assert list(map(len, truths)) == [10, 8, 6, 4]
    numbers = outcome.records[-1]["models"]["average"]
    right = [
        accuracy_score(truth, np.array(p) > 0.5) for truth, p in zip(truths, positives, strict=True)
    ]
    assert numbers["client-accuracy"]["values"] == pytest.approx(right, abs=1e-12)
    assert numbers["accuracy"] == pytest.approx(np.average(right, weights=[10, 8, 6, 4]), abs=1e-12)
    areas = [roc_auc_score(truth, p) for truth, p in zip(truths[:3], positives[:3], strict=True)]
    *known, last = numbers["client-auroc"]["values"]
    assert known == pytest.approx(areas, abs=1e-9) and last is None  # the last site has one class
    assert numbers["client-auroc"]["mean"] == pytest.approx(np.mean(areas), abs=1e-9)
    assert numbers["auroc"] == pytest.approx(np.average(areas, weights=[25, 16, 9]), abs=1e-9)


@pytest.mark.parametrize("method", ["fedbn", "silobn", "singleset", "fedprox"])
def test_scores_of_subjects_travel(train: Train, root: str, method: str) -> None:
    handed, faithful = (
        train(
            name,
            method=method,
            data_root=root,
            grid=LocalGrid(faithful=name == "faithful"),
            **ABIDE,
        )
        for name in ("handed", "faithful")
    )
    assert handed.records == faithful.records and handed.hash == faithful.hash
    values = handed.records[-1]["models"]["average"]["client-auroc"]["values"]
    assert values[3] is None and all(0 <= value <= 1 for value in values[:3])


def test_a_client_with_impossible_pairs_is_left_out(train: Train, root: str) -> None:
    def tamper(asked: Any, records: Any) -> None:
        if kind_of(asked) == "evaluate":
            scores = unpack(records.array_records["1/test/average"])
            records["1/test/average"] = pack({**scores, "ranking": scores["ranking"] * 2})

    outcome = train(
        grid=TamperingGrid(tamper), method="fedbn", data_root=root, min_reply_share=0.5, **ABIDE
    )
    assert "over other pairs than their samples make" in outcome.records[-1]["failures"]["1"]
    values = outcome.records[-1]["models"]["average"]["client-auroc"]["values"]
    assert values[1] is None and len(values) == 4


def test_the_table_has_a_column_where_all_have_two_classes(train: Train, root: str) -> None:
    summary = train(method="fedbn", data_root=root, **ABIDE).summary
    config = small(Path(root), method="fedbn", data_root=root, **ABIDE)
    console = Console(width=120)
    with console.capture() as capture:
        console.print(results_table(lines([], [config], {config.run_id: summary})))
    table = capture.get()
    auroc = summary["models"]["average"]["last"]["auroc"]
    assert "AUROC" in table and f"{100 * auroc:.1f}" in table
    other = train("digits", method="fedavg")
    plain = small(Path(root))
    digits = results_table(lines([], [plain], {plain.run_id: other.summary}))
    assert [column.header for column in digits.columns][:5] == [
        "method",
        "balanced",
        "best",
        "F1",
        "0",
    ]
