"""Settings are parsed strictly: every error names the key, the value and the rule."""

import json
import tomllib
from collections.abc import Mapping
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from annotated_types import Ge, Gt, Le, Lt

from client_app.run_spec import RunSpec
from data import OneOf, SettingError
from data.renamed_settings import OLD_NAMES
from server_app.composition import compose, section_types
from server_app.methods import METHODS
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS, Scalar
from server_app.settings import as_toml, defaults, explanations, groups, parse, parse_text
from strategies.registry import SERVER_METHODS

ROOT = Path(__file__).resolve().parents[2]
METHOD_OF = {
    section: next(
        (
            name
            for name, method in METHODS.items()
            if section in (*method.variants, *method.serving)
        ),
        "fedavg",
    )
    for section in section_types()
}
"""By a part with settings, a method to try them with."""
NAN, INFINITY = float("nan"), float("inf")
DOMAINS: dict[str, Any] = {"dataset": "domains:mnist,usps"}
UNSEEN: dict[str, Any] = {**DOMAINS, "method": "fedbn", "unseen-domain": "usps"}
BN_SHARES = "local-batch-norm.share-norm-statistics"
HINTS: dict[str, Any] = {
    group.key(field): hint
    for group in groups()
    for field, hint in get_type_hints(group, include_extras=True).items()
}
"""The annotation of every setting."""


def markers(key: str, kind: type) -> list[Any]:
    """Return the rules of a kind beside a setting's field."""
    return [
        marker for marker in getattr(HINTS[key], "__metadata__", ()) if isinstance(marker, kind)
    ]


def beyond(key: str, default: Scalar) -> list[Scalar]:
    """Return values next to the ends of a setting's range, and no word of its choice."""
    values: list[Scalar] = [INFINITY, NAN] if isinstance(default, float) else []
    step, kind = (0.1, float) if isinstance(default, float) else (1, int)
    values += [kind(marker.ge - step) for marker in markers(key, Ge)] + [
        kind(marker.gt) for marker in markers(key, Gt)
    ]
    values += [kind(marker.le + step) for marker in markers(key, Le)] + [
        kind(marker.lt) for marker in markers(key, Lt)
    ]
    return values + ["", "no such"] * bool(markers(key, OneOf))


RULES_IN_CODE: dict[str, list[Scalar]] = {
    "method": ["", "fedavg+", "fedsift"],
    "model": ["resnet-9", ""],
    "dataset": ["", "digts"],
    "classes": ["1", "a,a", "a,,b"],
    "positive-class": ["dead"],
    "head-start": ["fed3r", "fedncm", "fedcof", "ccvr"],
    "keep-best": ["recall", "last", "Loss"],
    "input-shape": ["8", "8x8", "0x8x8", "axbxc"],
    "mean": ["a", "1,2", "nan"],
    "std": ["0", "-1", "inf"],
    "pixel-range": ["1", "2,1", "a,b"],
    "frame": ["-1", "last"],
    "columns": ["label", "colour=x"],
    "partition": ["dirichlet", "domains"],
    "partition-file": ["nowhere.json"],
    "method-settings": ["{", "3", '{"rounds": 2}'],
    "domain-percent": [0.0, -1.0, 15.0, 25.0, 101.0],
    "unseen-domain": ["svhn", "mnist,usps"],
    "batch-size": [1],
    "local-batch-norm.refused-by": ["0,,1", "a", "-1", "1", "0,7"],
    "local-statistics.refused-by": ["0,,1", "mnist", "1"],
    "logit-shift.smoothing": [0.1],
    "reweighting.smoothing": [0.1],
    "creff.sweep": ["0,,1", "a", "-1", "0", "1,1", "1.5"],
    "tau-norm.sweep": ["0,,1", "a", "-1", "0,nan", "1,1.0"],
    **{
        f"{head}.rho": ["", "-1", "inf", "nan", "automatic"]
        for head in ("fed-lda", "fed-lda-pooled", "fed3r")
    },
    "fed3r.sweep": ["0.1,,1", "a", "-1", "1,inf", "1,1.0"],
    "weights": ["nowhere.pth"],
    "freeze": ["all"],
}
"""Values that are refused by more than a range or a choice."""
OUT_OF_RANGE = {
    key: values
    for key, default in defaults().items()
    if (values := beyond(key, default) + RULES_IN_CODE.get(key, []))
}
ANYTHING_GOES = {"results", "data-root", "cache", "labels"}
"""Beside what is true or false."""
OTHER_VALUE: dict[str, Scalar] = {
    "positive-class": "autism", "keep-best": "loss", "head-start": "fed-lda",
    "method": "fedprox", "model": "small-cnn", "dataset": "usps", "classes": "a,b,c,d,e,f,g,h,i,j",
    "input-shape": "1x16x16", "mean": "0.25", "std": "0.75", "partition": "iid", "imbalance-factor": 2.0,
    "batch-size": 16, "tau-norm.sweep": "0,0.5", "creff.sweep": "0,10", "image-side": 40,
    "width": 16, "unseen-domain": "usps",
    "fed3r.sweep": "0.1,1", "fed3r.rho": "0.25", "fed-lda.rho": "0.25", "fed-lda-pooled.rho": "0.25",
    "local-batch-norm.refused-by": "0", "local-statistics.refused-by": "0",
    "pixel-range": "0,1", "frame": "middle", "columns": "label=x",
    "labels": "BodyPartExamined",
}  # fmt: skip


NEEDED: dict[str, dict[str, Scalar]] = {
    "patience": {"keep-best": "loss"},
    "finetune-sampling": {"method": "iwds", "finetune-epochs": 1},
    "head-start": {"model": "linear"},
    **{
        key: {"dataset": "npz:x", "classes": "10", "input-shape": "1x8x8"}
        for key in (
            "first-label",
            "pixel-range",
            "frame",
            "columns",
            "missing",
            "outside-folder",
            "split-seed",
        )
    },
    "labels": {"dataset": "folder:x", "classes": "10", "input-shape": "1x8x8"},
    "fedbe.concentration": {"fedbe.distribution": "dirichlet"},
    "llt-form": {"partition": "llt", "clients": 20},
    "logit-shift.local-share": {"logit-shift.target": "mixed"},
    "second-momentum": {"optimizer": "adam"},
    "epsilon": {"optimizer": "adamw"},
    "schedule-unit": {"warm-up": 3},
    "schedule-rounds": {"schedule": "cosine"},
    "classes-per-client": {"partition": "classes-per-client"},
    "recipe": {"dataset": "digits-five"},
    "cinic-train": {"dataset": "cinic10"},
    "window-width": {"dataset": "abide"},
    "window-stride": {"dataset": "abide"},
    "test-fold": {"dataset": "abide"},
    "positive-class": {"dataset": "abide", "model": "abide-mlp", "holdout-per-class": 0},
    "parts-per-domain": {"dataset": "domains:mnist,usps"},
    "domain-percent": {"dataset": "domains:mnist,usps"},
    "unseen-domain": {"dataset": "domains:mnist,usps"},
    "image-side": {"model": "torchvision:shufflenet_v2_x0_5", "dataset": "cifar10"},
    "width": {"model": "resnet-8", "dataset": "cifar10"},
    "lift": {"model": "random-conv", "dataset": "cifar10"},
    **{
        f"{part}.{key}": {"dataset": "domains:mnist,usps", "unseen-domain": "usps", **shares}
        for part in ("local-batch-norm", "local-statistics")
        for key, shares in (
            ("share-norm-statistics", {}),
            ("refused-by", {f"{part}.share-norm-statistics": True}),
        )
    },
}
"""Other settings without which a setting would change nothing."""


NEED_A_FILE = {"partition-file", "weights", "freeze"}
NOT_HERE = {tracker for tracker in ("mlflow", "wandb") if find_spec(tracker) is None}
SERVER_OPTIMIZERS = {
    "server-momentum-form": "fedavgm", "server-second-momentum": "fedyogi", "server-adaptivity": "fedadagrad",
}  # fmt: skip
"""The methods without whose server optimizer a setting would change nothing."""


def in_force(key: str) -> dict[str, Any]:
    """Return the settings with which `key` has an effect, on a model with batch norm."""
    holdout = {} if key in ("holdout-per-class", "partition-file") else {"holdout-per-class": 5}
    method = SERVER_OPTIMIZERS.get(key) or METHOD_OF.get(key.rpartition(".")[0], "fedavg")
    model = model_for(method)
    return {"model": model, "method": method, **holdout, **NEEDED.get(key, {})}


def model_for(method: str) -> str:
    """Return a model with which the method goes: with batch norm, or with fixed features for a head in closed form."""
    kinds = [SERVER_METHODS[name] for name in METHODS[method].serving]
    return "linear" if any(kind.closed_form for kind in kinds) else "mlp-bn"


def other_value(key: str) -> Scalar:
    """Return a valid value that is not the default."""
    default = defaults()[key]
    if key in OTHER_VALUE:
        return OTHER_VALUE[key]
    for choice in markers(key, OneOf):
        return next(word for word in choice.holds.__self__ if word != default)
    if isinstance(default, bool):
        return not default
    if isinstance(default, int):
        return default + 1
    return (
        default / 2
        if isinstance(default, float) and default
        else f"{default}x"
        if isinstance(default, str)
        else 0.5
    )


def test_every_key_is_listed_here() -> None:
    switches = {key for key, default in defaults().items() if isinstance(default, bool)}
    assert OUT_OF_RANGE.keys() | ANYTHING_GOES | switches == defaults().keys()


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in OUT_OF_RANGE.items() for value in values]
)
def test_out_of_range(key: str, value: Scalar) -> None:
    with pytest.raises(SettingError) as caught:
        parse({**in_force(key), key: value})
    message = str(caught.value)
    assert caught.value.key == key
    assert (
        message.startswith(f"{key} = {value!r}: ")
        and len(message) > len(f"{key} = {value!r}: ") + 8
    )


@pytest.mark.parametrize("key", defaults())
def test_wrong_type(key: str) -> None:
    kind = type(defaults()[key])
    wrong: dict[type, list[Any]] = {
        bool: [1, "true", 0.0], int: [True, "3", 2.0], float: ["0.5", False, None], str: [3, True, ["a"]],
    }  # fmt: skip
    for value in wrong[kind]:
        with pytest.raises(SettingError) as caught:
            parse({**in_force(key), key: value})
        assert caught.value.key == key and f"{key} = {value!r}: must be " in str(caught.value)


def test_integer_serves_as_a_number() -> None:
    settings = parse({"alpha": 1, "participation": 1})
    assert (type(settings.data.alpha), settings.data.alpha) == (float, 1.0)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("round", "rounds"), ("learning_rate", "learning-rate"), ("logit-shift.smothing", "logit-shift.smoothing"),
     ("feature-steps", "creff.feature-steps"), ("creff.m", "")],
)  # fmt: skip
def test_unknown_key(key: str, nearest: str) -> None:
    with pytest.raises(SettingError, match=rf"^{key} = 3: there is no such setting") as caught:
        parse({"method": "fedshift+creff", key: 3})
    if nearest:
        assert str(caught.value).endswith(f"did you mean {nearest}?")


@pytest.mark.parametrize(
    ("config", "key", "words"),
    [
        ({"partition": "iid", "alpha": 0.5}, "alpha", ("has no effect", "iid")),
        ({"partition": "iid", "min-samples": 3}, "min-samples", ("has no effect", "iid")),
        ({"partition": "llt", "min-samples": 3}, "min-samples", ("has no effect", "llt")),
        ({"dataset": "domains:mnist,usps", "alpha": 0.5}, "alpha", ("has no effect", "domains")),
        ({"partition": "pooled", "alpha": 0.5}, "alpha", ("has no effect", "pooled")),
        ({"partition": "feddf", "min-samples": 3}, "min-samples", ("has no effect", "feddf")),
        ({"llt-form": "literal"}, "llt-form", ("has no effect", "lda")),
        (
            {"partition": "llt", "llt-form": "literal"},
            "llt-form",
            ("has no effect", "as many as classes"),
        ),
        ({"recipe": "fedbn"}, "recipe", ("several domains",)),
        ({"dataset": "abide", "recipe": "fedbn"}, "recipe", ("several domains",)),
        ({"dataset": "mnist", "cinic-train": "train"}, "cinic-train", ("has no effect", "mnist")),
        ({"dataset": "abide", "augmentation": "rotate"}, "augmentation", ("images", "6105")),
        ({"test-fold": 1}, "test-fold", ("has no effect", "digits")),
        ({"window-width": 16}, "window-width", ("has no effect", "digits")),
        ({"parts-per-domain": 2}, "parts-per-domain", ("has no effect", "lda")),
        ({"domain-percent": 50.0}, "domain-percent", ("has no effect", "lda")),
        ({"unseen-domain": "usps"}, "unseen-domain", ("has no effect", "lda")),
        (
            {"unseen-domain": "usps", **DOMAINS, "partition": "pooled"},
            "unseen-domain",
            ("has no effect", "pooled"),
        ),
        (
            {"unseen-domain": "svhn", **DOMAINS},
            "unseen-domain",
            ("must be a domain", "mnist, usps"),
        ),
        (
            {"unseen-domain": "usps", "dataset": "domains:usps"},
            "unseen-domain",
            ("only domain", "domains:usps"),
        ),
        (
            {"unseen-domain": "usps", **DOMAINS, "clients": 2},
            "clients",
            ("must be 0 or 1", "but usps"),
        ),
        (
            {"unseen-domain": "usps", **DOMAINS, "method": "singleset"},
            "unseen-domain",
            ("shares nothing",),
        ),
        (
            {"method": "fedbn", **DOMAINS, BN_SHARES: True},
            BN_SHARES,
            ("has no effect", "without unseen-domain"),
        ),
        ({"method": "fedavg", **DOMAINS, BN_SHARES: True}, BN_SHARES, ("has no effect", "fedavg")),
        (
            {**UNSEEN, "local-batch-norm.refused-by": "0"},
            "local-batch-norm.refused-by",
            ("without share",),
        ),
        (
            {**UNSEEN, BN_SHARES: True, "local-batch-norm.refused-by": "1"},
            "local-batch-norm.refused-by",
            ("below",),
        ),
        (
            {"method": "fedavg", "creff.head-steps": 3},
            "creff.head-steps",
            ("has no effect", "fedavg", "creff"),
        ),
        (
            {"method": "creff-code", "creff.distance": "paper-literal"},
            "creff.distance",
            ("no effect", "creff-code"),
        ),
        (
            {"method": "creff-code", "dataset": "abide"},
            "method",
            ("augmented-gradients", "vectors of 6105"),
        ),
        ({"method": "fedshift", "proximal.mu": 0.3}, "proximal.mu", ("has no effect", "fedshift")),
        (
            {"method": "feddf+fedbe", "holdout-per-class": 5},
            "method",
            ("feddf and fedbe", "combine"),
        ),
        ({"method": "feddf", "holdout-per-class": 0}, "holdout-per-class", ("feddf", "at least 1")),
        (
            {"method": "ratio-loss", "holdout-per-class": 0},
            "holdout-per-class",
            ("ratio-loss", "at least 1"),
        ),
        (
            {"method": "ratio-loss+fedshift", "holdout-per-class": 5},
            "method",
            ("class-weights and logit-shift", "twice"),
        ),
        (
            {"method": "ratio-loss+singleset", "holdout-per-class": 5},
            "method",
            ("ratio-loss would do nothing",),
        ),
        (
            {"method": "tau-norm+real-features", "holdout-per-class": 0},
            "holdout-per-class",
            ("real-features",),
        ),
        (
            {"method": "ccvr+fedbn", "model": "mlp-bn"},
            "method",
            ("ccvr", "local-batch-norm", "same everywhere"),
        ),
        (
            {"method": "feddf+fedbn", "holdout-per-class": 5},
            "method",
            ("feddf", "local-batch-norm"),
        ),
        (
            {"method": "fedbe+fedbn", "holdout-per-class": 5},
            "method",
            ("fedbe", "local-batch-norm"),
        ),
        (
            {"method": "fedbn+real-features", "holdout-per-class": 5},
            "method",
            ("real-features", "local-batch-norm"),
        ),
        (
            {"method": "tau-norm", "tau-norm.tau": 0.5, "tau-norm.sweep": "0,1"},
            "tau-norm.tau",
            ("tau-norm.sweep",),
        ),
        ({"method": "fedshift+reweighting"}, "method", ("logit-shift and reweighting", "twice")),
        ({"method": "fedbn", "model": "small-cnn"}, "model", ("no batch norm", "fedbn")),
        ({"method": "silobn", "model": "small-cnn"}, "model", ("no batch norm", "silobn")),
        ({"method": "scaffold+fednova"}, "method", ("fednova", "scaffold", "combine")),
        ({"method": "fedlc+fedshift"}, "method", ("logit-calibration and logit-shift", "twice")),
        ({"method": "silobn+fedbn"}, "method", ("batch norm stays",)),
        (
            {"method": "iwds+uniform-sampling"},
            "method",
            ("iwds and uniform-sampling", "draw the samples"),
        ),
        (
            {"method": "singleset+fedprox+fedavgm"},
            "method",
            ("fedprox and fedavgm would do nothing", "local-model"),
        ),
        ({"method": "singleset+tau-norm"}, "method", ("tau-norm would do nothing",)),
        (
            {"method": "uniform-sampling", "resampling.beta-start": 0.5},
            "resampling.beta-start",
            ("means 0.0",),
        ),
        ({"method": "singleset", "server-momentum": 0.5}, "server-momentum", ("shares nothing",)),
        (
            {"method": "singleset", "fedavg.weighting": "all"},
            "fedavg.weighting",
            ("shares nothing",),
        ),
        (
            {"server-momentum-form": "damped"},
            "server-momentum-form",
            ("has no effect", "server-momentum"),
        ),
        ({"method": "fedsift"}, "method", ("fedsift", "did you mean fedshift")),
        ({"method": "fedbn+iwsd"}, "method", ("iwsd", "did you mean iwds")),
        ({"method": "fedbn++iwds"}, "method", ("an empty name",)),
        ({"method": "xyz"}, "method", ("known are", "fedavg")),
        ({"method": "fedavg+fedavg"}, "method", ("names fedavg 2 times", "name it once")),
        ({"method": "fedshift+iwds+ fedshift"}, "method", ("names fedshift 2 times",)),
        ({"partition": "llt", "clients": 7}, "clients", ("multiple", "10")),
        ({"partition": "domains"}, "partition", ("domains",)),
        ({"partition": "file"}, "partition", ("needs a partition-file",)),
        ({"partition-file": "x", "alpha": 0.5}, "alpha", ("has no effect", "file")),
        (
            {"partition-file": "x", "train-images": 50},
            "train-images",
            ("has no effect", "partition-file"),
        ),
        ({"partition-file": "x", "partition": "lda"}, "partition", ("must be auto",)),
        ({"model": "mlp-bn", "weights": "x.pth"}, "weights", ("backbones", "mlp-bn")),
        ({"model": "small-cnn", "norm": "group"}, "norm", ("no effect", "no batch norm")),
        (
            {"model": "efficientnet-lite0", "dataset": "cifar10", "norm": "group"},
            "norm",
            ("small models",),
        ),
        ({"model": "efficientnet-lite0", "freeze": "stages"}, "freeze", ("random", "weights")),
        (
            {"model": "efficientnet-lite0", "image-side": 16},
            "model",
            ("32x32", "1x16x16", "image-side"),
        ),
        (
            {"model": "torchvision:resnet19", "image-side": 32},
            "model",
            ("no classifier", "resnet18"),
        ),
        ({"model": "torchvision:squeezenet1_0", "image-side": 32}, "model", ("no linear head",)),
        ({"model": "torchvision:vit_b_32", "image-side": 32}, "model", ("224x224", "32x32")),
        ({"model": "efficientnet-lite0", "dataset": "abide"}, "model", ("images", "6105")),
        ({"model": "mlp-bn", "batch-size": 1}, "batch-size", ("at least 2", "mlp-bn")),
        ({"train-images": 100, "imbalance-factor": 10.0}, "train-images", ("imbalance-factor",)),
        (
            {"model": "small-cnn", "dataset": "npz:x", "classes": "2", "input-shape": "30"},
            "model",
            ("images", "30"),
        ),
    ],
)
def test_contradictions(config: Mapping[str, Any], key: str, words: tuple[str, ...]) -> None:
    with pytest.raises(SettingError) as caught:
        parse(config)
    assert caught.value.key == key
    assert f"{key} = {config[key]!r}: " in str(caught.value)
    assert [word for word in words if word not in str(caught.value)] == []


def test_idle_settings_at_their_defaults_are_no_error() -> None:
    parse(defaults())  # flwr hands over every key of pyproject.toml
    parse({**defaults(), "method": "creff+fedbn", "model": "mlp-bn", "partition": "iid"})


@pytest.mark.parametrize("method", METHODS)
def test_every_method_parses(method: str) -> None:
    settings = parse({"method": method, "model": model_for(method), "holdout-per-class": 5})
    assert settings.general.method == method
    assert RunSpec.from_json(settings.run_spec().to_json()) == settings.run_spec()


def test_method_order_does_not_matter() -> None:
    ids = set()
    for names in permutations(["fedshift", "fedbn", "iwds", "creff", "fedavg"]):
        settings = parse({"method": "+".join(names), "model": "mlp-bn"})
        ids.add(settings.run_id)
        assert settings.general.method == "fedshift+fedbn+iwds+creff"
        assert settings.parts == compose("creff+iwds+fedbn+fedshift")
    assert len(ids) == 1
    assert parse({"method": " fedbn + fedavg ", "model": "mlp-bn"}).general.method == "fedbn"


@pytest.mark.parametrize(
    "key", [key for key in defaults() if key not in {*NEED_A_FILE, "method-settings", *NOT_HERE}]
)
def test_run_id(key: str) -> None:
    """It changes with every setting that can change a number, and with no other."""
    changed = {**in_force(key), key: other_value(key)}
    same = parse(changed).run_id == parse(in_force(key)).run_id
    assert same == (key in WITHOUT_EFFECT_ON_NUMBERS)


def test_run_id_is_the_same_for_what_is_left_out_and_spelled_out() -> None:
    plain, spelled = (
        parse({}),
        parse({**defaults(), "partition": "lda", "model": "small-cnn", "clients": 10}),
    )
    assert plain.run_id == spelled.run_id
    assert plain.run_id.startswith("digits-fedshift-seed0-")
    assert parse({"results": "~/x"}).folder == Path.home() / "x" / plain.run_id


@pytest.mark.parametrize(
    "config",
    [
        {},
        {
            "method": "creff+fedshift+fedbn",
            "model": "mlp-bn",
            "creff.feature-steps": 7,
            "logit-shift.smoothing": 0.5,
        },
        {"method": "tau-norm+iwds", "partition": "iid", "tau-norm.tau": 0.5, "resampling.decay": 1},
        {"dataset": "cifar10", "imbalance-factor": 50, "partition": "llt", "clients": 20},
        {"dataset": "domains:mnist,usps,mnist-m", "method": "fedbn"},
        {**UNSEEN, BN_SHARES: True, "local-batch-norm.refused-by": "0"},
        {"dataset": "npz:/a/b.npz", "classes": "cat,dog", "input-shape": "30", "model": "mlp-bn"},
    ],
)
def test_flat_round_trip(config: Mapping[str, Any]) -> None:
    settings = parse(config)
    flat = settings.flat()
    assert parse(flat) == settings and parse(flat).run_id == settings.run_id
    assert json.loads(json.dumps(flat)) == flat and "auto" not in (flat["model"], flat["partition"])
    assert {key: flat[key] for key in config if key not in ("method",)} == {
        key: value for key, value in config.items() if key not in ("method",)
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rounds=7", ("rounds", 7)),
        (" rounds = 7 ", ("rounds", 7)),
        ("rounds=1.5", ("rounds", 1.5)),
        ("rounds=many", ("rounds", "many")),
        ("alpha=1", ("alpha", 1)),
        ("alpha=1e-3", ("alpha", 0.001)),
        ("overwrite=True", ("overwrite", True)),
        ("overwrite=false", ("overwrite", False)),
        ("overwrite=1", ("overwrite", "1")),
        ("classes=10", ("classes", "10")),
        ("mean=0.5", ("mean", "0.5")),
        ("method=fedbn+iwds", ("method", "fedbn+iwds")),
        ("logit-shift.smoothing=0", ("logit-shift.smoothing", 0)),
        ("cache=a=b", ("cache", "a=b")),
        ("cache=", ("cache", "")),
        ("unknown=1", ("unknown", "1")),
    ],
)
def test_parse_text(text: str, expected: tuple[str, Scalar]) -> None:
    key, value = parse_text(text)
    assert (key, value, type(value)) == (*expected, type(expected[1]))


@pytest.mark.parametrize("text", ["rounds", "=3", ""])
def test_parse_text_needs_key_and_value(text: str) -> None:
    with pytest.raises(SettingError, match="must be key=value"):
        parse_text(text)


def test_defaults_of_the_flower_app() -> None:
    """`flwr run` may override the keys of pyproject.toml alone, so all of them are there, with the same defaults."""
    written = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert written == tomllib.loads(as_toml())["tool"]["flwr"]["app"]["config"]
    assert as_toml() in (ROOT / "pyproject.toml").read_text() + "\n"
    flat = {
        f"{k}.{n}": v
        for k, part in written.items()
        if isinstance(part, dict)
        for n, v in part.items()
    }
    flat |= {key: value for key, value in written.items() if not isinstance(value, dict)}
    # No settings: a file for the sites' answers, the coordinator's signature, and the protocol.
    assert (flat.pop("readiness"), flat.pop("run-signature")) == ("", "")
    assert flat.pop("protocol") == "clients"
    for new_name, old_name in OLD_NAMES.items():
        assert flat.pop(old_name) == flat[new_name]
    assert {key: (type(value), value) for key, value in flat.items()} == {
        key: (type(value), value) for key, value in defaults().items()
    }


def test_every_setting_is_explained() -> None:
    explained = explanations()
    assert explained.keys() == defaults().keys()
    for text in explained.values():
        assert len(text) > 10 and text[-1] in ".)n" and "\n" not in text


def test_suitable_models() -> None:
    expected = {
        "digits": "small-cnn", "mnist": "mcmahan-cnn", "usps": "small-cnn", "cifar10": "resnet-8",
        "domains:mnist,usps": "digit-model", "digits-five": "digit-model", "office-caltech10": "alexnet-bn",
        "domainnet": "alexnet-bn", "pacs": "alexnet-bn", "abide": "abide-mlp", "abide-nyu": "abide-mlp",
        "cinic10": "resnet-18", "tiny-imagenet": "resnet-50",
    }  # fmt: skip
    assert {dataset: parse({"dataset": dataset}).general.model for dataset in expected} == expected


@pytest.mark.parametrize(
    ("shape", "model"),
    [("1x28x28", "resnet-8"), ("3x64x64", "resnet-8"), ("1x224x224", "resnet-18-imagenet"), ("30", "mlp-bn")],
)  # fmt: skip
def test_the_same_images_have_the_same_model_in_every_form(
    tmp_path: Path, shape: str, model: str
) -> None:
    """What is asked for has batch norm, so that FedBN is possible."""
    (tmp_path / "a.csv").write_text("path,label\n")
    own = [f"npz:{tmp_path}/a.npz", f"csv:{tmp_path}/a.csv"]
    if "x" in shape:
        own += [f"folder:{tmp_path}/a", f"medmnist:{tmp_path}/a.npz"]
    own += [f"domains:{name},npz:{tmp_path}/b.npz" for name in own]
    found = set()
    for dataset in own:
        settings = {"dataset": dataset, "classes": "2", "input-shape": shape}
        found.add(parse(settings | {"method": "fedbn"}).general.model)
        assert parse(settings | {"model": "vgg-9" if "x" in shape else "linear"})
    assert found == {model}
