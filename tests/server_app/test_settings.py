"""Settings: what is refused names its key, what goes together is taken, and every number's setting is in the run id."""

import copy
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from annotated_types import Ge, Gt, Le, Lt

from client_app.models import PLAIN, build
from client_app.optimizer import TrainingSettings
from client_app.run_spec import RunSpec
from data import OneOf, SettingError, Settings
from server_app.composition import section_types
from server_app.methods import METHODS
from server_app.run_settings import sized_model
from server_app.settings import as_toml, defaults, groups, parse, parse_texts
from strategies import SERVER_METHODS

ROOT = Path(__file__).resolve().parents[2]
DEFAULTS = json.loads((Path(__file__).parent / "defaults.json").read_text())
NAN, INFINITY = float("nan"), float("inf")
WITHOUT_EFFECT = {
    "device", "results", "overwrite", "data-root", "download", "cache", "nodes", "node-wait", "timeout",
    "min-reply-share", "tensorboard", "mlflow", "wandb",
}  # fmt: skip
"""The settings that change no number."""


# ---- one setting alone -----------------------------------------------------------------------------------------------


def bounds() -> Iterator[tuple[type[Settings], str, Any, Any]]:
    """Yield (group, field, a value beyond a declared bound, one within it) of every bound of every setting."""
    for group in groups():
        for field, hint in get_type_hints(group, include_extras=True).items():
            markers = getattr(hint, "__metadata__", ())
            default = getattr(group, field, None)
            step = 1 if isinstance(default, int) else 1e-6
            for marker in markers:
                if isinstance(marker, Ge):
                    yield group, field, type(default)(marker.ge - step), type(default)(marker.ge)
                elif isinstance(marker, Le):
                    yield group, field, type(default)(marker.le + step), type(default)(marker.le)
                elif isinstance(marker, Gt):
                    yield group, field, type(default)(marker.gt), type(default)(marker.gt + step)
                elif isinstance(marker, Lt):
                    yield group, field, type(default)(marker.lt), type(default)(marker.lt - step)
                elif isinstance(marker, OneOf):
                    yield group, field, "no such", default
            if isinstance(default, float):
                yield group, field, NAN, default
                yield group, field, INFINITY, default


def test_every_declared_bound_is_kept_and_reached() -> None:
    """docs/reference/ pins the bounds themselves. What contradicts another setting is refused by another rule."""
    checked = 0
    for group, field, beyond, within in bounds():
        with pytest.raises(SettingError) as refused:
            group(**{field: beyond})
        key = group.key(field)
        assert refused.value.key == key, (key, beyond)
        words = [rule.words for rule in group.rules[field]]
        assert refused.value.rule in [*words, "must be a finite number"], (key, beyond)
        try:
            group(**{field: within})
        except SettingError as other:
            assert other.rule not in words, (key, within)
        checked += 1
    assert checked > 250


RULES_IN_CODE: dict[str, list[Any]] = {
    "method": ["", "fedavg+", "fedavg+fedavg"],
    "model": ["resnet-9", ""],
    "positive-class": ["dead"],
    "partition-file": ["nowhere.json"],
    "freeze": ["all"],
    "method-settings": ["{", "3", '{"rounds": 2}'],
    "logit-shift.smoothing": [0.1],
    "fed3r.rho": ["", "-1", "inf", "nan", "automatic"],
    "batch-size": [1],
    "rounds": [True, "3", 2.0],
    "alpha": ["0.5", None],
    "overwrite": [1],
    "cache": [3],
}
"""Values that are refused by more than a bound or a choice, or are of another type."""
BESIDE: dict[str, dict[str, Any]] = {
    "fed3r.rho": {"method": "fed3r"},
    "batch-size": {"model": "mlp-bn"},
    "partition-file": {"partition": "file"},
}


@pytest.mark.parametrize("key", RULES_IN_CODE)
def test_a_value_that_no_run_can_have_names_its_key(key: str) -> None:
    for value in RULES_IN_CODE[key]:
        with pytest.raises(SettingError) as refused:
            parse({"model": "linear", **BESIDE.get(key, {}), key: value})
        assert refused.value.key == key and refused.value.value == value


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("round", "rounds"), ("logit-shift.smothing", "logit-shift.smoothing"), ("feature-steps", "creff.feature-steps")],
)  # fmt: skip
def test_an_unknown_key_is_refused_with_the_nearest(key: str, nearest: str) -> None:
    with pytest.raises(SettingError) as refused:
        parse({"method": "fedshift+creff", key: 3})
    assert refused.value.key == key
    assert refused.value.remedy == f"did you mean {nearest}?"


# ---- between settings ------------------------------------------------------------------------------------------------

DOMAINS: dict[str, Any] = {"dataset": "domains:mnist,usps"}
HOLDOUT: dict[str, Any] = {"holdout-per-class": 5}


@pytest.mark.parametrize(
    ("config", "key"),
    [
        # no effect
        ({"partition": "iid", "min-samples": 3}, "min-samples"),
        ({**DOMAINS, "alpha": 0.5}, "alpha"),
        ({"dataset": "mnist", "window-stride": 2}, "window-stride"),
        ({"test-fold": 1}, "test-fold"),
        ({"method": "fedavg", "creff.head-steps": 3}, "creff.head-steps"),
        ({"method": "singleset", "server-momentum": 0.5}, "server-momentum"),
        ({"method": "singleset", "server-optimizer": "adam"}, "server-optimizer"),
        ({"server-momentum-form": "damped"}, "server-momentum-form"),
        ({"method": "fedadam", "server-learning-rate": 1.0}, "server-learning-rate"),
        ({"method": "uniform-sampling", "resampling.decay": 0.5}, "resampling.decay"),
        ({"method": "moon", "model": "linear"}, "model"),
        ({"method": "feddecorr", "model": "random-conv", "dataset": "cifar10"}, "model"),
        ({"method": "real-blocks", "model": "linear", **HOLDOUT}, "model"),
        ({"learning-rate-decay-every": 5}, "learning-rate-decay-every"),
        ({"method": "iwds", "finetune-sampling": "method"}, "finetune-sampling"),
        ({"schedule": "cosine", "schedule-rounds": 1, "finetune-epochs": 1}, "finetune-epochs"),
        ({"model": "small-cnn", "norm": "group"}, "norm"),
        ({"model": "linear", "initialization": "he"}, "initialization"),
        ({"method": "fedncm", "model": "linear", "class-means.bits": 0}, "class-means.bits"),
        # contradictions between methods
        ({"method": "scaffold+fednova"}, "method"),
        ({"method": "fedadam+fedyogi"}, "method"),
        ({"method": "fedavgm+fedadam"}, "method"),
        ({"method": "fedper+fedrep"}, "method"),
        ({"method": "fedavgm", "server-optimizer": "adam"}, "server-optimizer"),
        ({"method": "uniform-sampling", "resampling.beta-start": 0.5}, "resampling.beta-start"),
        # a method and the rest
        ({"method": "feddf", "holdout-per-class": 0}, "holdout-per-class"),
        (
            {"method": "creff+fedbn", "creff.compare-features": True, **HOLDOUT, "model": "mlp-bn"},
            "creff.compare-features",
        ),
        ({"method": "fedbn", "dataset": "cifar10", "model": "small-cnn"}, "model"),
        ({"method": "fedper", "model": "linear"}, "model"),
        ({"alpha": NAN}, "alpha"),  # which equals no default, nor itself
        ({"method": "scaffold", "optimizer": "adamw"}, "optimizer"),
        ({"method": "creff-code", "dataset": "abide"}, "method"),
        ({"method": "fed3r", "model": "mlp-bn"}, "method"),
        ({"method": "fedshift+fed3r", "model": "linear", "rounds": 0}, "rounds"),
        # model and data
        ({"dataset": "abide", "augmentation": "rotate"}, "augmentation"),
        ({"model": "mlp-bn", "weights": "x.pth"}, "weights"),
        ({"model": "torchvision:vit_b_32", "image-side": 32}, "model"),
    ],
)
def test_what_contradicts_another_setting_is_refused(config: Mapping[str, Any], key: str) -> None:
    with pytest.raises(SettingError) as refused:
        parse({"model": "mlp-bn", **config} if key == "method" else config)
    assert refused.value.key == key
    if key != "method":
        others = {name: value for name, value in config.items() if name not in (key, "image-side")}
        assert parse({**HOLDOUT, **others} if "feddf" in others.values() else others)


def model_for(method: str) -> str:
    """Return a model with which the method goes: with batch norm, or with fixed features for a head in closed form."""
    kinds = [SERVER_METHODS[name] for name in METHODS[method].serving]
    return "linear" if any("fixed-features" in kind.needs for kind in kinds) else "mlp-bn"


@pytest.mark.parametrize("method", METHODS)
def test_every_method_parses_and_its_settings_come_back(method: str) -> None:
    """From JSON for clients, and from the flat settings, as flwr states them."""
    settings = parse({"method": method, "model": model_for(method), **HOLDOUT})
    assert settings.general.method == method
    assert RunSpec.from_json(settings.run_spec().to_json()) == settings.run_spec()
    flat = json.loads(json.dumps(settings.flat()))
    assert parse(flat) == settings and parse(flat).run_id == settings.run_id
    assert "auto" not in (flat["model"], flat["partition"])


# ---- the run id ------------------------------------------------------------------------------------------------------

PINNED: dict[str, dict[str, Any]] = {
    "digits-fedshift-seed0-3dc1a6a8fb": {},
    "cifar10-creff+fedavgm-seed2-89b7e40555": {
        "method": "creff+fedavgm",
        "dataset": "cifar10",
        "clients": 20,
        "imbalance-factor": 50.0,
        "participation": 0.4,
        "seed": 2,
    },
    "domains-mnist-usps-fedbn+iwds-seed0-d49fc41bb1": {
        **DOMAINS,
        "method": "fedbn+iwds",
        "resampling.decay": 0.5,
    },
}
"""Finished runs are found by these names: they stay."""


def with_value(group: Settings, field: str) -> Settings:
    """Return a group with another value of a field, whatever its rules say."""
    value = getattr(group, field)
    changed = copy.copy(group)
    other = f"{value}x" if isinstance(value, str) else not value if value is True else value + 1
    object.__setattr__(changed, field, other)
    return changed


def test_the_run_id_changes_with_every_setting_that_can_change_a_number() -> None:
    settings = parse({"method": "fedavg"})

    def moves(**changes: Any) -> bool:
        return replace(settings, **changes).run_id != settings.run_id

    seen = set()
    for name in ("general", "model", "data", "training", "exchange"):
        group = getattr(settings, name)
        for field in fields(group):
            key = group.key(field.name)
            if key != "weights":  # a file, which is read
                assert moves(**{name: with_value(group, field.name)}) == (
                    key not in WITHOUT_EFFECT
                ), key
                seen.add(key)
    for kind in section_types().values():
        for field in fields(kind):
            assert moves(variants=(with_value(kind(), field.name),)), kind.key(field.name)
    assert seen >= WITHOUT_EFFECT


@dataclass(frozen=True)
class MoreTrainingSettings(TrainingSettings):
    later_setting: int = 0


@pytest.mark.parametrize("run_id", PINNED)
def test_ids_stay_and_a_new_setting_at_its_default_renames_no_run(run_id: str) -> None:
    settings = parse(PINNED[run_id])
    assert settings.run_id == run_id
    values = {
        field.name: getattr(settings.training, field.name) for field in fields(TrainingSettings)
    }
    for later, is_same in ((0, True), (1, False)):
        training = MoreTrainingSettings(**values, later_setting=later)
        assert (replace(settings, training=training).run_id == run_id) == is_same


def test_what_is_resolved_and_what_a_name_sets_is_the_same_run_spelled_out() -> None:
    plain = parse({"method": "fedavgm", "dataset": "cifar10"})
    spelled = {"server-momentum": 0.9, "mean": "0.4914,0.4822,0.4465", "clients": 10, "classes": "10",
               "partition": "lda", "model": plain.general.model, "input-shape": "3x32x32"}  # fmt: skip
    assert parse({"method": "fedavgm", "dataset": "cifar10", **spelled}).run_id == plain.run_id
    everything = {**defaults(), "partition": "lda", "model": "small-cnn", "clients": 10}
    assert parse(everything).run_id == parse({}).run_id, "flwr states every key"
    assert parse({"results": "~/x"}).folder == Path.home() / "x" / parse({}).run_id


def test_no_default_that_ids_leave_out_is_changed() -> None:
    """A changed one would give runs of other numbers the id of finished ones."""
    known = {key: value for key, value in defaults().items() if key not in WITHOUT_EFFECT}
    assert {key: known.get(key) for key in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        ("csv:/home/somebody/study/rows.csv", "rows-csv"),
        ("domains:npz:/home/somebody/north.npz,folder:/home/somebody/south", "north-npz-south"),
    ],
)
def test_a_run_s_name_leaves_out_the_folders_of_the_user(dataset: str, name: str) -> None:
    own = {"classes": "a,b", "input-shape": "1x4x4", "method": "fedavg", "dataset": dataset}
    assert re.fullmatch(f"{name}-fedavg-seed0-[0-9a-f]{{10}}", parse(own).run_id)


# ---- how settings are written ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" rounds = 7 ", ("rounds", 7)),
        ("rounds=many", ("rounds", "many")),
        ("alpha=1e-3", ("alpha", 0.001)),
        ("overwrite=True", ("overwrite", True)),
        ("classes=10", ("classes", "10")),
        ("cache=a=b", ("cache", "a=b")),
    ],
)
def test_the_key_s_own_type_decides_how_text_is_read(text: str, expected: tuple[str, Any]) -> None:
    ((key, value),) = parse_texts([text]).items()
    assert (key, value, type(value)) == (*expected, type(expected[1]))


def test_the_flower_app_declares_every_setting_at_its_default() -> None:
    """`flwr run` may override the keys of pyproject.toml alone."""
    text = (ROOT / "pyproject.toml").read_text()
    assert as_toml() in text + "\n"
    flat: dict[str, Any] = {}
    for key, value in tomllib.loads(text)["tool"]["flwr"]["app"]["config"].items():
        parts = value if isinstance(value, dict) else {"": value}
        flat |= {f"{key}.{name}".rstrip("."): part for name, part in parts.items()}
    # No settings: a file for the sites' answers, and the coordinator's signature.
    assert {flat.pop(key) for key in ("readiness", "run-signature")} == {""}
    assert flat == defaults()
    assert {key: type(flat[key]) for key in flat} == {k: type(v) for k, v in defaults().items()}


def model_of(**stated: str) -> str:
    return parse({key.replace("_", "-"): value for key, value in stated.items()}).general.model


@pytest.mark.parametrize("name", ["mcmahan-cnn", "resnet-8", "torchvision:shufflenet_v2_x0_5"])
def test_a_model_s_size_is_that_of_the_model(name: str) -> None:
    given = (name, (3, 64, 64), 5)
    sized, built = sized_model(*given, PLAIN).state_dict(), build(*given, 0).state_dict()
    assert {key: (tensor.shape, tensor.dtype) for key, tensor in sized.items()} == {
        key: (tensor.shape, tensor.dtype) for key, tensor in built.items()
    }


def test_a_data_set_has_a_suitable_model() -> None:
    expected = {
        "digits": "small-cnn", "mnist": "mcmahan-cnn", "cifar10": "resnet-8", "domains:mnist,usps": "digit-model",
        "office-caltech10": "alexnet-bn", "abide": "abide-mlp", "cinic10": "resnet-18", "tiny-imagenet": "resnet-50",
    }  # fmt: skip
    assert {dataset: model_of(dataset=dataset) for dataset in expected} == expected


def test_clients_per_pass_0_is_resolved() -> None:
    tiny = {"dataset": "digits", "model": "mlp-bn", "method": "fedavg"}
    assert parse({**tiny, "clients-per-pass": 0}).training.clients_per_pass == 64
    slow = {**tiny, "model": "resnet-8", "clients-per-pass": 0}
    assert parse(slow).training.clients_per_pass == parse(tiny).training.clients_per_pass == 1
