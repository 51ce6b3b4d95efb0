"""A federation whose test samples are windows of subjects: every number is of subjects, site by site."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from in_process import FinishedRun, small
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


@pytest.mark.parametrize("method", ["fedbn", "fedprox"])
def test_scores_of_subjects_travel(train: Train, root: str, method: str) -> None:
    changes = {**ABIDE, "method": method, "data_root": root, "rounds": 1}
    handed = train("handed", **changes)
    faithful = train("faithful", grid=LocalGrid(faithful=True), **changes)
    assert handed.records == faithful.records and handed.hash == faithful.hash
    values = handed.records[-1]["models"]["average"]["client-auroc"]["values"]
    assert values[3] is None and all(0 <= value <= 1 for value in values[:3])


# ---- one positive class of two ---------------------------------------------------------------------------------------

NAMES = ("control", "autism")


@pytest.mark.parametrize("stated", ["", "control"])
def test_a_run_says_its_positive_class_and_keeps_it(train: Train, root: str, stated: str) -> None:
    config = {**ABIDE, "rounds": 1, "positive_class": stated}
    outcome = train("one", method="fedavg", data_root=root, **config)
    numbers = outcome.records[-1]["models"]["average"]
    named = numbers["positive-class"]
    assert named == (stated or named) and named in NAMES
    for key in OF_POSITIVE:
        assert numbers[key] == numbers[f"{key}-by-class"][NAMES.index(named)], key
    assert outcome.summary["models"]["average"]["last"]["positive-class"] == named


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
    RunEvaluation.decide_positive(run, {"average": {0: two_classes(20), 1: two_classes(40)}})
    assert run.positive == PositiveClass(1, "ill") and len(said) == 1
    assert said[0].startswith(
        "positive class: ill (the rarer one of the test samples of the sites)"
    )
    RunEvaluation.decide_positive(run, {"average": {1: two_classes(90)}})
    assert run.positive == PositiveClass(1, "ill") and len(said) == 1
    numbers = metrics_from(two_classes(30), positive=PositiveClass(0, "well"))
    folder.rounds = lambda: [RoundRecord(1, {"average": numbers})]
    assert RunEvaluation.known_positive(run) == PositiveClass(0, "well"), "as the records say"
    general.positive_class = "ill"
    assert RunEvaluation.known_positive(run) == PositiveClass(1, "ill")
