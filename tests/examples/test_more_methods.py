"""examples/more-methods: FedCOF, FedDisco and FedVLS as plug-ins, their equations and a run of each."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from agreed_module import added_methods_forgotten
from in_process import FinishedRun

import fedskew
from client_app.client import Client
from client_app.models import build
from client_app.state import State
from data import Samples
from fedskew.methods import Server, Statistics, TrainingSettings, Update
from strategies.core.validation import RejectedUpdate, check_upload

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "more-methods"
RUNS = {
    "more_methods.fedcof:FEDCOF": {"model": "linear", "client-means.range": 32.0},
    "more_methods.feddisco:FEDDISCO": {},
    "more_methods.fedvls:FEDVLS": {},
}
CLASSES = 4
Train = Callable[..., FinishedRun]


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the package importable; its methods are forgotten again."""
    monkeypatch.syspath_prepend(str(FOLDER))
    with added_methods_forgotten():
        yield


@pytest.mark.parametrize("method", RUNS)
def test_a_run_repeats_to_the_bit_and_the_contract_holds(method: str, train: Train) -> None:
    assert fedskew.check_method(method).paper
    first, again = (train(folder, method=method, **RUNS[method]) for folder in ("one", "two"))
    assert first.hash == again.hash
    assert first.records[-1]["failures"] == {}


def server_of(classes: int) -> Any:
    """Return a server whose model has so many classes."""
    return SimpleNamespace(model=build("linear", (2,), classes, 0), start={})


def client_of(counts: list[int]) -> Client:
    """Return a client with so many samples of each class."""
    labels_N = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    samples = Samples(torch.zeros(len(labels_N), 1), labels_N, torch.zeros(1), torch.ones(1))
    return Client(id=0, model=None, samples=samples, num_classes=len(counts))  # type: ignore[arg-type]


def test_fedvls_is_its_equation() -> None:
    from more_methods.fedvls import TINY, VacantClasses

    client = client_of([3, 1, 0, 0])
    variant = VacantClasses(calibration=0.5, distillation=0.3, suppression=0.2)
    prior_C = client.counts_C / 4
    assert torch.allclose(variant.logit_offset(client), 0.5 * (prior_C + TINY).log())
    indices_B = torch.tensor([0, 3, 1])
    draws = torch.Generator().manual_seed(0)
    logits_BC, teacher_BC = torch.randn(2, 3, CLASSES, generator=draws, dtype=torch.float64)
    term_B = variant.loss_term(client, indices_B, logits_BC, logits_BC, teacher_BC)

    student, received = logits_BC[:, 2:].softmax(1), teacher_BC[:, 2:].softmax(1)
    divergence_B = (received * (received / student).log()).sum(1)
    suppression = 0.0
    for label in range(CLASSES):
        exponents = []
        for row, own in enumerate((0, 1, 0)):
            balanced = logits_BC[row, label] - math.log(prior_C[label] + TINY)
            balanced = balanced + math.log(1 / CLASSES + TINY)
            exponents.append(0.0 if own == label else float(balanced))
        mean = sum(map(math.exp, exponents)) / 3
        suppression += float(prior_C[label]) * math.log(mean)
    assert torch.allclose(term_B, 0.3 * divergence_B + 0.2 * suppression)


@pytest.mark.parametrize("measure", ["kl", "l2"])
def test_feddisco_is_its_equation(measure: str) -> None:
    from more_methods.feddisco import FedDisco, LabelDiscrepancy

    asked = LabelDiscrepancy(measure)
    clients = [client_of(counts) for counts in ([4, 4, 0, 0], [2, 2, 2, 2], [0, 0, 0, 12])]
    shares = [client.counts_C / client.counts_C.sum() for client in clients]
    if measure == "l2":
        distances = [float((share - 1 / CLASSES).norm()) for share in shares]
    else:
        distances = [
            math.log(CLASSES) - sum(-p * math.log(p) for p in share.tolist() if p)
            for share in shares
        ]
    answers = [asked.answer(client) for client in clients]
    numbers_K1 = torch.stack([answer["discrepancy"] for answer in answers])
    for answer, distance in zip(answers, distances, strict=True):
        assert int(answer["discrepancy"]) / 2**32 == pytest.approx(distance, abs=1e-9)
        check_upload(asked.upload, answer, server_of(CLASSES))

    values = [1.0, 10.0, 100.0]
    updates = [
        Update(number, {"w": torch.tensor([value])}, examples=len(client.samples))
        for number, (client, value) in enumerate(zip(clients, values, strict=True))
    ]
    server = Server(
        model=None,  # type: ignore[arg-type]
        start={},
        clients=3,
        round=1,
        seed=0,
        training=TrainingSettings(),
        variants={asked.name: asked},
        answers={asked.name: {"discrepancy": numbers_K1}},
    )
    combined, _ = FedDisco(a=0.4, b=0.1).combine(server, {}, updates)
    scale = sum(distances) if measure == "kl" else 1.0
    weights = [
        max(0.0, len(client.samples) / 28 - 0.4 * distance / scale + 0.1)
        for client, distance in zip(clients, distances, strict=True)
    ]
    expected = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
    assert float(combined["w"]) == pytest.approx(expected)


def test_a_discrepancy_that_no_class_shares_have_is_refused() -> None:
    from more_methods.feddisco import UNIT, LabelDiscrepancy

    for number in (-1, math.ceil(math.log(CLASSES) * UNIT) + 1):
        with pytest.raises(RejectedUpdate):
            answer = {"discrepancy": torch.tensor([number])}
            check_upload(LabelDiscrepancy().upload, answer, server_of(CLASSES))


def test_fedcof_s_covariance_is_that_of_the_clients_means() -> None:
    from more_methods.fedcof import covariance

    draws = torch.Generator().manual_seed(0)
    counts_KC = torch.tensor([[3, 2, 0], [5, 0, 0], [4, 6, 0]])
    sums_KCD = torch.randint(-9, 9, (3, 3, 2), generator=draws) * (counts_KC > 0)[:, :, None]
    answer: State = {"counts": counts_KC, "sums": sums_KCD}
    step = 0.5
    held_counts = counts_KC.sum(0)[:2]
    means_CD = sums_KCD.sum(0)[:2] * step / held_counts[:, None]
    statistics = Statistics(held_counts, means_CD.double(), torch.ones_like(held_counts))

    scatter_DD = torch.zeros(2, 2, dtype=torch.float64)
    for label, holders in ((0, (0, 1, 2)), (1, (0, 2))):
        of_class_DD = torch.zeros(2, 2, dtype=torch.float64)
        for client in holders:
            count = int(counts_KC[client, label])
            around_D = sums_KCD[client, label].double() * step / count - means_CD[label]
            of_class_DD += count * torch.outer(around_D, around_D)
        weight = int(held_counts[label]) - 1
        scatter_DD += weight * of_class_DD / (len(holders) - 1)
    assert torch.allclose(
        covariance(statistics, answer, step), scatter_DD / float(held_counts.sum() - 2)
    )
