"""What runs cost: bytes against what real runs send and write, sizes against real partitions, and what cannot fit."""

import io
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import experiment, small
from rich.console import Console

from client_app.messages import size
from client_app.models import build
from client_app.variants.augmented_gradients import AugmentedGradients
from client_app.variants.class_statistics import ClassStatistics, class_statistics
from client_app.variants.control_variates import ControlVariates
from client_app.variants.feature_gradients import FeatureGradients
from data import DataSettings, Samples, SettingError, resolve
from fedskew.costs import dry_run, sizes
from fedskew.costs.estimate import Cost, cost_of, evaluations, work_of
from fedskew.costs.memory import memory_of, output_bytes, refuse_what_cannot_fit, upload_of
from fedskew.costs.rehearsal import Rates, Stage, repeated, shortened
from fedskew.costs.sizes import Sizes, sizes_of, steps
from fedskew.sweep.jobs import Shares
from server_app.run_settings import RunSettings
from server_app.settings import parse
from strategies.creff import CReFF

RATES = Rates(
    step=1.0, sample=0.1, client=3.0, tested=0.01, server=5.0, once=7.0, rest=2.0,
    down=100.0, up=60.0, checkpoint=1000, memory=10, record=20,
)  # fmt: skip
SIZES = Sizes(train=(64, 33, 8, 1), held=(4, 3, 2, 1), test=50, own_tests=False, holdout=0)


# ---- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "creff+fedshift", "scaffold", "fedbn"])
def test_bytes_are_those_of_a_real_run(tmp_path: Path, method: str) -> None:
    """The rehearsal's clients hold one or two samples each, the real ones many classes."""
    changes = {"method": method, "rounds": 2, "clients": 6, "participation": 0.5, "batch_size": 8}
    settings = small(tmp_path, **changes)
    cost = cost_of(settings, known(settings), Stage(tmp_path / "stage").measure(settings))
    real = experiment(tmp_path, **changes)
    taken = [record["clients"] for record in real.records]
    assert cost.down == sum(record["bytes-down"] for record in real.records)
    if method != "creff+fedshift":
        assert cost.up == sum(record["bytes-up"] for record in real.records)
    else:  # who takes part decides how many classes are held; the estimate is the mean over all clients
        held = known(settings).held
        unit = 8 + 4 * 10 * build("mlp-bn", (1, 8, 8), 10, 0).head.in_features
        mean = 3 * sum(held) / len(held)
        difference = sum(unit * (sum(held[client] for client in clients) - mean) for clients in taken)
        assert cost.up == pytest.approx(sum(record["bytes-up"] for record in real.records) - difference)
    assert cost.left == 2 and cost.seconds > 0
    files = [file for file in real.folder.path.rglob("*") if file.is_file()]
    assert 0.8 < cost.disk / sum(file.stat().st_size for file in files) < 3, (
        "a client that took part once keeps one file"
    )
    assert cost_of(settings, known(settings), RATES).left == 0, "it is finished now"


def known(settings: RunSettings) -> Sizes:
    found = sizes_of(settings.data, settings.general.seed)
    assert found is not None
    return found


@pytest.mark.parametrize("held", [0, 1, 3])
def test_uploads_are_as_large_as_told(held: int) -> None:
    model = build("small-cnn", (1, 8, 8), 4, 0)
    features_ND = torch.randn(12, model.head.in_features).double()
    answer = class_statistics(features_ND[: 3 * held], torch.arange(held).repeat(3))
    assert upload_of([ClassStatistics()], model, held) == size(answer)
    width = model.head.in_features
    gradients = {"classes": torch.arange(held), "gradients": torch.zeros(held, 4, width)}
    assert upload_of([FeatureGradients()], model, held) == size(gradients)
    assert upload_of([FeatureGradients(classes_per_round=2)], model, 3) == 2 * (8 + 16 * width)
    with_bias = {"classes": torch.arange(held), "gradients": torch.zeros(held, 4, width + 1)}
    assert upload_of([AugmentedGradients()], model, held) == size(with_bias)
    assert upload_of([ControlVariates()], model, held) == size(dict(model.named_parameters()))


# ---- samples ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"train_images": 500, "test_images": 100},
        {"imbalance_factor": 10.0, "largest_class": 100},
        {"imbalance_factor": 10.0},
        {"holdout_per_class": 5, "partition": "iid"},
        {"partition": "pooled"},
    ],
)
def test_sizes_of_missing_data_are_about_those_of_the_data(
    monkeypatch: pytest.MonkeyPatch, changes: Mapping[str, Any]
) -> None:
    data = resolve(DataSettings(**{"alpha": 100.0, **changes}))
    real = sizes_of(data, 0)
    monkeypatch.setattr(sizes, "missing", lambda data: "gone")
    guessed = sizes_of(data, 0)
    assert real is not None and guessed is not None
    assert sum(guessed.train) == pytest.approx(sum(real.train), rel=0.05)
    assert (guessed.test, guessed.holdout, len(guessed.train)) == (real.test, real.holdout, len(real.train))
    assert all(most >= held for most, held in zip(guessed.held, real.held, strict=True))


def test_sizes_of_missing_domains_follow_the_recipe(tmp_path: Path) -> None:
    digits = resolve(DataSettings("digits-five", str(tmp_path), recipe="fedbn"))
    found = sizes_of(digits, 0)
    assert found is not None
    assert found.train == (7438,) * 5 and found.own_tests
    parts = sizes_of(replace(digits, parts_per_domain=2, clients=10), 0)
    assert parts is not None and parts.train == (743,) * 10
    assert sizes_of(resolve(DataSettings("domainnet", str(tmp_path))), 0) is None, "depends on files that are not there"


def test_a_dry_run_downloads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "federate", lambda *words: pytest.fail("loads the data"))
    found = sizes_of(resolve(DataSettings("mnist", str(tmp_path), download=True)), 0)
    assert found is not None and sum(found.train) == 60_000


# ---- time ------------------------------------------------------------------------------------------------------------


def timed(**changes: Any) -> RunSettings:
    return small(Path("nowhere"), **{"clients": 4, "rounds": 10, "batch_size": 32, "local_epochs": 2, **changes})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {64: 4.0, 32: 2.0, 33: 2 * (33 / 32 + 2) / 2, 8: 2 * (0.25 + 1) / 2}),
        ({"batch_limit": 1}, {64: 2.0, 8: 1.25}),
        ({"local_steps": 7}, {64: 7.0, 8: 7.0}),
    ],
)
def test_steps_are_counted_in_whole_batches(changes: Mapping[str, Any], expected: Mapping[int, float]) -> None:
    assert {samples: steps(timed(**changes).training, samples) for samples in expected} == pytest.approx(expected)


def test_seconds_are_the_sum_of_what_a_run_does() -> None:
    settings = timed(evaluate_every=4, local_steps=5, participation=0.5)
    client = 3.0 + 5 * 1.0 + (64 + 33 + 8 + 1) / 4 * 0.1
    expected = 10 * (2 * client + 5.0 + 2.0) + 3 * 50 * 0.01 + 7.0
    assert evaluations(settings, 10) == 3 and evaluations(settings, 2) == 2 - 1 and evaluations(settings, 3) == 2
    assert cost_of(settings, SIZES, RATES).seconds == pytest.approx(expected)
    assert cost_of(settings, SIZES, RATES, workers=2).seconds == pytest.approx(expected - 10 * client)


def test_clients_that_measure_themselves_each_take_the_whole_test_set() -> None:
    alone, private = (cost_of(timed(method=name), SIZES, RATES).seconds for name in ("fedavg", "fedbn"))
    assert private - alone == pytest.approx(10 * 50 * 0.01 * 3)
    own = cost_of(timed(method="fedbn"), replace(SIZES, own_tests=True), RATES).seconds
    assert own == pytest.approx(alone)


def test_a_part_takes_few_steps_on_stage() -> None:
    assert repeated(CReFF()) == ["feature_steps", "head_steps"]
    short = shortened(CReFF(feature_steps=0, head_steps=300), "head_steps")
    assert (short.feature_steps, short.head_steps) == (0, 3)  # type: ignore[attr-defined]
    assert shortened(CReFF(), "").head_steps == 1  # type: ignore[attr-defined]


def test_runs_that_have_methods_in_common_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, calls = Stage(tmp_path), list[str]()
    monkeypatch.setattr(stage, "client_rates", lambda settings: calls.append("client") or (1.0, 1.0, 1.0))
    monkeypatch.setattr(stage, "all_rates", lambda settings, *rates: calls.append("server") or RATES)
    for changes in ({}, {"seed": 1}, {"method": "feddf"}, {"alpha": 0.1}, {"batch_size": 8}):
        stage.measure(timed(**changes))
    assert calls == ["client", "server", "server", "client", "server"]


# ---- memory, and what cannot fit -------------------------------------------------------------------------------------


def test_memory_counts_data_models_and_replies(tmp_path: Path) -> None:
    few, many = (timed(method="creff", participation=share) for share in (0.25, 1.0))
    own = size(build("mlp-bn", (1, 8, 8), 10, 0).state_dict())
    upload = upload_of(few.variants, build("mlp-bn", (1, 8, 8), 10, 0), 4)
    assert memory_of(many, SIZES) - memory_of(few, SIZES) == 2 * 3 * (own + upload)
    more = replace(SIZES, train=tuple(10 * samples for samples in SIZES.train))
    assert memory_of(few, more) - memory_of(few, SIZES) == 9 * sum(SIZES.train) * 64


def test_layers_outputs_are_counted_without_computing() -> None:
    """3x3 convolutions of 8x8 images to 32 and 64 channels, pooled to 4x4 and 2x2, as small-cnn has them."""
    largest, every = output_bytes("small-cnn", (1, 8, 8), 10)
    model, found = build("small-cnn", (1, 8, 8), 10, 0).eval(), list[int]()
    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(lambda module, inputs, output: found.append(output.numel() * 4))
    model(torch.zeros(1, 1, 8, 8))
    assert (largest, every) == (max(found), sum(found))


def imagenet(**changes: Any) -> RunSettings:
    stated = {"method": "creff", "dataset": "imagenet-lt", "clients": 20, "participation": 0.4}
    return parse({**stated, **{key.replace("__", ".").replace("_", "-"): value for key, value in changes.items()}})


def test_creff_on_imagenet_lt_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        total = 32 * 2**30

    monkeypatch.setattr("psutil.virtual_memory", Memory)
    settings = imagenet()
    rule = r"feature-gradients.classes-per-round = 0: the gradients of 1000 classes are up to 8.19 GB a client"
    with pytest.raises(SettingError, match=rule):
        refuse_what_cannot_fit(settings, known(settings))
    remedied = imagenet(feature_gradients__classes_per_round=10)
    refuse_what_cannot_fit(remedied, known(remedied))
    many = imagenet(method="fedavg", clients=500, participation=1.0)
    with pytest.raises(SettingError, match=r"participation = 1.0: the run needs"):
        refuse_what_cannot_fit(many, known(many))


# ---- the plan --------------------------------------------------------------------------------------------------------


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured."""
    monkeypatch.setattr(Stage, "measure", lambda stage, settings: RATES)
    monkeypatch.setattr(dry_run, "start", lambda: 1.5)


@pytest.mark.usefixtures("staged")
def test_a_plan_names_runs_costs_missing_data_and_refusals(tmp_path: Path) -> None:
    done = experiment(tmp_path, seed=1)
    gone = {"dataset": "mnist", "model": "small-cnn", "data_root": str(tmp_path), "train_images": 0}
    planned = [small(tmp_path), small(tmp_path, seed=1), small(tmp_path, **gone), imagenet(results=str(tmp_path))]
    names = {one.run_id: f"run {number}" for number, one in enumerate(planned)}
    plan = dry_run.plan_costs(planned, names, Console(file=io.StringIO()), "inprocess", 2, 0)
    first, second, third, fourth = plan.entries
    assert first.cost is not None and first.cost.left == 2 and not first.missing
    assert second.cost is not None and (second.cost.left, second.cost.seconds) == (0, 0.0)
    assert second.cost.disk == sum(file.stat().st_size for file in done.folder.path.rglob("*") if file.is_file())
    assert "mnist is not there" in third.missing and third.cost is not None, "its size is known"
    assert "imagenet-lt" in fourth.missing and "8.19 GB" in fourth.refused and fourth.cost is None
    assert plan.seconds == 2 * 1.5 + max(third.cost.seconds, (first.cost.seconds + third.cost.seconds) / 2)
    assert plan.refusals == [fourth.refused]
    console = Console(file=io.StringIO(), width=200)
    console.print(dry_run.plan_table(plan))
    text = "\n".join([console.file.getvalue(), *dry_run.told(plan)])  # type: ignore[attr-defined]
    for words in ("run 0", "cannot fit", "missing data, 1 run:", "4 runs, 1 of them finished"):
        assert words in text
    assert [entry["label"] for entry in dry_run.as_json(plan)] == list(names.values())


def test_work_counts_what_trains_a_whole_model(tmp_path: Path) -> None:
    """2 of 4 clients of 30 samples, 3 epochs, 5 rounds; distilling adds its steps, a head is next to none."""
    shape = {"rounds": 5, "clients": 4, "participation": 0.5, "batch_size": 10, "local_epochs": 3}
    held = Sizes(train=(30,) * 4, held=(10,) * 4, test=10, own_tests=False, holdout=0)
    expected = {"fedavg": 0, "ccvr": 0, "fedavgm": 0, "feddf": 7 * 16}
    more = {"feddf": {"feddf__steps": 7, "feddf__batch_size": 16}}
    for method, server in expected.items():
        one = small(tmp_path, **shape, method=method, **more.get(method, {}))
        assert work_of(one, held) == 5 * (2 * 3 * 30 + server), method


def test_a_full_disk_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = small(tmp_path / "not" / "there")
    entry = dry_run.Entry(one, "run", "", "", Cost(2, 1.0, 5e9, 0.0, 0.0, 0.0))
    plan = dry_run.Plan([entry], Shares("inprocess", 1, 1), 0.0)
    monkeypatch.setattr(dry_run, "free_disk", lambda folder: 10**9)
    expected = ["the runs need 5.00 GB of disk, and 1.00 GB are free"]
    assert [words.partition(": ")[2] for words in plan.refusals] == expected
    monkeypatch.setattr(dry_run, "free_disk", lambda folder: 10**10)
    assert plan.refusals == []


def test_free_disk_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert dry_run.free_disk(tmp_path / "a" / "b") == pytest.approx(dry_run.free_disk(tmp_path), rel=0.1)


def test_a_rehearsal_measures_every_kind_of_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that a batch, a gradient and a softmax move by a second each, and nothing else."""
    clock = [0.0]
    for owner, name in ((Samples, "batch"), (torch.autograd, "grad"), (torch, "softmax")):
        monkeypatch.setattr(owner, name, ticking(getattr(owner, name), clock))
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    stage = Stage(tmp_path / "stage")
    rates = stage.measure(small(tmp_path, method="creff+ccvr", ccvr__head_steps=100, creff__head_steps=200))
    assert rates.step == 2, "a batch and its gradient"
    assert rates.tested == (4 - 1) / (4 * 64 - 2), "batches"
    assert rates.client == rates.step + 2, "its features and their softmax"
    assert rates.server == 200 + 3 * 2 + 1, "steps of the head, steps of the federated features, once for all"
    assert rates.once == 100, "CCVR's head"
    assert rates.memory == 0 and rates.checkpoint > 0 and rates.record > 0
    assert stage.measure(small(tmp_path, method="feddf")).server == 4 + 1 + 4 * 2, "teachers, their mean, steps"
    for epochs in (1, 4):
        ratio = stage.measure(small(tmp_path, method="ratio-loss", local_epochs=epochs))
        assert ratio.server == pytest.approx(10 * 2 * epochs), "a step for each class"


def ticking(function: Callable[..., Any], clock: list[float]) -> Callable[..., Any]:
    """Return the function, which moves the clock when it is called."""

    def called(*inputs: Any, **named: Any) -> Any:
        clock[0] += 1
        return function(*inputs, **named)

    return called
