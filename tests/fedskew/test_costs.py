"""What runs cost: the bytes that real runs send, rounds that were observed, and what cannot fit."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from client_app.variants.norm_statistics import QUESTION, PrivateNorm
from flwr.app import RecordDict
from in_process import TamperingGrid, experiment, small

from client_app.client import Client
from client_app.messages import kind_of, unpack
from client_app.models import build
from client_app.state import size
from client_app.variants.feature_gradients import FeatureGradients
from client_app.variants.local_batch_norm import LocalBatchNorm
from client_app.variants.local_statistics import LocalStatistics
from data import DataSettings, Samples, SettingError, resolve
from fedskew.costs import forecast as forecasts
from fedskew.costs import pace as paces
from fedskew.costs import sizes
from fedskew.costs.estimate import Cost, cost_of, rounds_left
from fedskew.costs.footprint import (
    down_of,
    refuse_what_cannot_fit,
)
from fedskew.costs.forecast import Entry, Forecast
from fedskew.costs.pace import Pace, Rates, Records, timed
from fedskew.costs.sizes import Sizes, sizes_of
from fedskew.scheduling import Allocation
from server_app.methods import METHODS
from server_app.run_settings import RunSettings, Scalar
from server_app.settings import parse

PACE = Pace(clients=6.0, server=5.0, evaluation=0.5, once=7.0)
SIZES = Sizes(train=(64, 33, 8, 1), held=(4, 3, 2, 1), test=50, own_tests=False, holdout=0)


def known(settings: RunSettings) -> Sizes:
    counted = sizes_of(settings.data, settings.general.seed)
    assert counted is not None
    return counted


# ---- what every method sends and writes ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_bytes_are_those_of_a_real_run(tmp_path: Path, method: str) -> None:
    """An upload whose bytes are not declared, in training or as an answer, fails here: for every method."""
    heard: dict[str, dict[str, int]] = {}

    def hear(asked: Any, records: RecordDict) -> None:
        for name, record in records.array_records.items():
            client, _, upload = name.partition("/upload/")
            if upload:
                heard.setdefault(upload, {})[client] = size(unpack(record))

    changes = {
        "method": method,
        "rounds": 2,
        "local_epochs": 1,
        "train_images": 120,
        "test_images": 20,
    }
    settings = small(tmp_path, **changes)
    sample, cost = known(settings), cost_of(small(tmp_path, **changes), known(settings), PACE)
    real = experiment(tmp_path, grid := TamperingGrid(hear), **changes)
    variants = {variant.name: variant for variant in settings.variants}
    model = build(settings.general.model, (1, 8, 8), 10, 0)
    expected = {
        name: {
            str(client): variant.upload.bytes(model, held)
            for client, held in enumerate(sample.held)
        }
        for name, variant in variants.items()
    }
    assert heard == {name: uploads for name, uploads in expected.items() if any(uploads.values())}
    answers = {variant.name for variant in settings.variants if variant.upload.once}
    once = sum(sum(uploads.values()) for name, uploads in heard.items() if name in answers)
    trained = [message for message in grid.asked if kind_of(message) == "train"]
    sent = [
        sum(size(unpack(record)) for record in asked.content.array_records.values())
        for asked in trained
    ]
    assert sent == [down_of(settings)] * 2, "an in-process node runs all clients by one message"
    answers_on_record = sum(record.bytes_up for record in real.folder.rounds()) - (cost.up - once)
    assert answers_on_record in (0, once)
    assert rounds_left(settings) == 0 and cost_of(settings, sample, PACE).up == 0, (
        "it is finished now"
    )


@pytest.mark.parametrize("variant", [LocalBatchNorm, LocalStatistics])
def test_batch_norm_is_an_upload_where_it_is_shared(variant: type[PrivateNorm]) -> None:
    model = build("mlp-bn", (1, 8, 8), 10, 0)
    kept = {name: model.state_dict()[name] for name in variant().private_names(model)}
    samples = Samples(torch.zeros(1, 1, 8, 8), torch.zeros(1).long(), torch.zeros(1), torch.ones(1))
    client = Client(0, model, samples, 10, memory={"private": kept})
    for sharing in (variant(share_norm_statistics=True), variant()):
        assert sharing.upload.once is sharing.share_norm_statistics
        assert sharing.upload.bytes(model, 10) == size(sharing.answer(client, QUESTION))


def test_classes_per_round_bound_the_gradients() -> None:
    model = build("mlp-bn", (1, 8, 8), 10, 0)
    row, bounded = 8 + 4 * model.head.weight.numel(), FeatureGradients(classes_per_round=2)
    assert [bounded.upload.bytes(model, held) for held in (1, 2, 9)] == [row, 2 * row, 2 * row]


# ---- samples ---------------------------------------------------------------------------------------------------------


def test_a_dry_run_downloads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "federate", lambda *words: pytest.fail("loads the data"))
    guessed = sizes_of(resolve(DataSettings("mnist", str(tmp_path), download=True)), 0)
    assert guessed is not None and sum(guessed.train) == 60_000


# ---- time ------------------------------------------------------------------------------------------------------------


def run_of(**changes: Any) -> RunSettings:
    return small(
        Path("nowhere"),
        **{"clients": 4, "rounds": 10, "batch_size": 32, "local_epochs": 2, **changes},
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {64: 4.0, 32: 2.0, 33: 2 * (33 / 32 + 2) / 2, 8: 2 * (0.25 + 1) / 2}),
        ({"batch_limit": 1}, {64: 2.0, 8: 1.25}),
        ({"local_steps": 7}, {64: 7.0, 8: 7.0}),
    ],
)
def test_steps_are_counted_in_whole_batches(
    changes: Mapping[str, Any], expected: Mapping[int, float]
) -> None:
    assert {
        samples: run_of(**changes).training.steps(samples) for samples in expected
    } == pytest.approx(expected)


@pytest.fixture
def unclocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model takes the same, so that nothing is measured."""
    monkeypatch.setattr(
        paces, "rates_of", lambda *words: Rates(step=32.0, tested=0.1, feature=0.01)
    )


SAMPLES = (64 + 33 + 8 + 1) / 4
STEPS = (4 + (33 / 32 + 2) + (8 / 32 + 1) + (1 / 32 + 1)) / 4
"""Of a client in a round of two epochs with batches of 32, half of a part of a batch for its fixed costs."""


@pytest.mark.usefixtures("unclocked")
@pytest.mark.parametrize(
    ("method", "changes", "clients", "server", "once"),
    [
        ("fedavg", {}, 0, 0, 0),
        ("creff", {"creff__features_per_class": 5}, SAMPLES / 3, 10 * 5 * (3 * 3 + 4) * 0.01, 0),
        ("creff-code", {}, 2 * SAMPLES / 3, 10 * 5 * (3 * 3 + 2) * 0.01, 0),
        ("ccvr", {}, 0, 0, 4 * SAMPLES / 3 + 10 * 5 * 4 * 0.01),
        ("scaffold", {"control_variates__option": "I"}, SAMPLES, 0, 0),
        ("real-features", {}, 0, 30 / 3 + 4 * 30 * 0.01, 0),
        ("real-blocks", {}, 0, 2 * 4 * 8, 0),
        ("feddf", {}, 0, 4 * 8 + 4 * 30 / 3, 0),
        ("fedbe", {}, 0, 4 * 8 + (1 + 4 + 2) * 30 / 3, 0),
        ("ratio-loss", {}, 0, 10 * 2 * (3 / 32 + 1) / 2 * 32, 0),
    ],
)
def test_every_method_s_own_work_counts(
    method: str, changes: Mapping[str, Any], clients: float, server: float, once: float
) -> None:
    """A sample takes a second, a feature a hundredth; `clients` is what one does beside training."""
    settings, sample = run_of(method=method, **changes), replace(SIZES, holdout=30)
    pace = timed(settings, sample)
    assert pace.clients == pytest.approx(4 * (STEPS * 32 + clients), rel=0.02)
    assert pace.server == pytest.approx(server)
    assert pace.once == pytest.approx(once, rel=0.02)
    assert pace.evaluation == pytest.approx(5.0)


def test_finished_rounds_of_the_same_kind_are_the_pace(tmp_path: Path) -> None:
    real = experiment(tmp_path, seed=3, method="ccvr", evaluate_every=2)
    records = Records(tmp_path)
    same = small(tmp_path, seed=1, method="ccvr", rounds=30, learning_rate=0.2, alpha=0.3)
    pace, seconds = records.pace(same), [record.seconds for record in real.folder.rounds()]
    assert pace is not None and pace.once == 0, "which the last round's record has"
    assert pace.clients == pytest.approx(sum(part.client_work for part in seconds) / 2)
    assert pace.evaluation == pytest.approx(seconds[-1].evaluation)
    whole = sum(part.round for part in seconds)
    parts = sum(part.clients + part.evaluation for part in seconds)
    assert pace.server == pytest.approx((whole - parts) / 2)
    for changes in (
        {"batch_size": 8},
        {"model": "small-cnn"},
        {"method": "fedavg"},
        {"train_images": 150},
    ):
        assert records.pace(small(tmp_path, **{"method": "ccvr", **changes})) is None
    assert Records(tmp_path / "nothing").pace(same) is None


# ---- memory, and what cannot fit -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("classes_per_round", "fits"), [(10, True), (0, False)])
def test_what_cannot_fit_is_refused_by_the_setting_to_change(
    monkeypatch: pytest.MonkeyPatch, classes_per_round: int, fits: bool
) -> None:
    """The gradients of all classes that a client holds are an upload of up to 8.19 GB."""
    memory = SimpleNamespace(total=32 * 2**30)
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
    stated: dict[str, Scalar] = {"dataset": "imagenet-lt", "method": "creff", "device": "cpu"}
    key = "feature-gradients.classes-per-round"
    settings = parse({**stated, "clients": 20, "participation": 0.4, key: classes_per_round})
    if fits:
        refuse_what_cannot_fit(settings, known(settings))
        return
    with pytest.raises(SettingError) as error:
        refuse_what_cannot_fit(settings, known(settings))
    assert error.value.key == key


# ---- the forecast ----------------------------------------------------------------------------------------------------


def test_a_full_disk_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small(tmp_path / "not" / "there")
    whole = Forecast(
        [Entry(settings, "run", cost=Cost(2, 1.0, 5e9, 0.0, 0.0, 0.0))],
        Allocation("inprocess", 1, 1),
    )
    monkeypatch.setattr(forecasts, "free_disk", lambda folder: 10**9)
    expected = ["the runs need 5.00 GB of disk, and 1.00 GB are free"]
    assert [words.partition(": ")[2] for words in whole.refusals] == expected
    monkeypatch.setattr(forecasts, "free_disk", lambda folder: 10**10)
    assert whole.refusals == []
