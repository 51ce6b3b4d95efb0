"""A federation whose test samples are windows of subjects: every number is of subjects, site by site."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from in_process import FinishedRun, faithful, small
from sklearn.metrics import accuracy_score, roc_auc_score

from client_app.metrics import Scores
from client_app.models import build
from client_app.runtime import initial_seed
from data import federate
from fedskew.engines.local import LocalGrid
from server_app.checkpoint import Checkpoint
from server_app.evaluation import OF_POSITIVE, PositiveClass, metrics_from
from server_app.record import RoundRecord
from server_app.run_evaluation import RunEvaluation

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
    right, areas = [], []
    for client in range(4):
        samples = federation.test(client)
        assert samples.groups_N is not None
        logits_NC = model(samples.batch(torch.arange(len(samples)))).detach().double()
        p_N, groups_N = torch.softmax(logits_NC, 1)[:, 1].numpy(), samples.groups_N.numpy()
        members = [groups_N == subject for subject in np.unique(groups_N)]
        truth = [int(samples.labels_N.numpy()[of_one][0]) for of_one in members]
        positive = np.array([p_N[of_one].mean() for of_one in members])
        right.append(accuracy_score(truth, positive > 0.5))
        areas += [roc_auc_score(truth, positive)] if client < 3 else []
    numbers = outcome.records[-1]["models"]["average"]
    assert numbers["client-accuracy"]["values"] == pytest.approx(right, abs=1e-12)
    assert numbers["accuracy"] == pytest.approx(np.average(right, weights=[10, 8, 6, 4]), abs=1e-12)
    *known, last = numbers["client-auroc"]["values"]
    assert known == pytest.approx(areas, abs=1e-9) and last is None  # the last site has one class
    assert numbers["client-auroc"]["mean"] == pytest.approx(np.mean(areas), abs=1e-9)
    assert numbers["auroc"] == pytest.approx(np.average(areas, weights=[25, 16, 9]), abs=1e-9)


def test_scores_of_subjects_travel(train: Train, root: str) -> None:
    changes = {**ABIDE, "method": "fedbn", "data_root": root, "rounds": 1}
    handed = train("handed", **changes)
    sent = train("sent", grid=faithful(LocalGrid()), **changes)
    assert handed.records == sent.records and handed.hash == sent.hash


# ---- one positive class of two ---------------------------------------------------------------------------------------


def test_a_run_says_its_positive_class_and_keeps_it(train: Train, root: str) -> None:
    config = {**ABIDE, "rounds": 1, "positive_class": "control"}
    outcome = train("one", method="fedavg", data_root=root, **config)
    numbers = outcome.records[-1]["models"]["average"]
    assert numbers["positive-class"] == "control"
    for key in OF_POSITIVE:
        assert numbers[key] == numbers[f"{key}-by-class"][0], key
    assert outcome.summary["models"]["average"]["last"]["positive-class"] == "control"


def two_classes(second: int) -> Scores:
    """Return scores of 100 samples, so many of them of the second class."""
    log_NC = torch.log_softmax(torch.randn(100, 2, generator=torch.Generator()).double(), 1)
    return Scores.of_probabilities(log_NC, (torch.arange(100) < second).long())


def test_between_sites_the_first_evaluation_decides_for_the_whole_run() -> None:
    """Nobody knows the sites' training samples; a site that is missing later must not change what is measured."""
    said: list[str] = []
    general = SimpleNamespace(positive_class="")
    settings = SimpleNamespace(
        general=general, data=SimpleNamespace(class_names=("well", "ill")), agreement="there is one"
    )
    folder = SimpleNamespace(rounds=list)
    run = SimpleNamespace(settings=settings, positive=None, report_line=said.append, folder=folder)
    run.report_positive = lambda: RunEvaluation.report_positive(run)
    assert RunEvaluation.known_positive(run) is None
    for evaluated in ({0: two_classes(20), 1: two_classes(40)}, {1: two_classes(90)}):
        RunEvaluation.decide_positive(run, {"average": evaluated})
        assert run.positive == PositiveClass(1, "ill") and len(said) == 1
    numbers = metrics_from(two_classes(30), positive=PositiveClass(0, "well"))
    folder.rounds = lambda: [RoundRecord(1, {"average": numbers})]
    assert RunEvaluation.known_positive(run) == PositiveClass(0, "well"), "as the records say"
    general.positive_class = "ill"
    assert RunEvaluation.known_positive(run) == PositiveClass(1, "ill")
