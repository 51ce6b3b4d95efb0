"""All that `fedskew.flower` reads of a variant: which ones a method has, what they send, and what they need.

The other modules of this package ask here, so that the interface of variants is known in one place.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from client_app.client import Variant, overrides
from client_app.models import Classifier
from client_app.models.classifier import has_batch_norm
from client_app.optimizer import TrainingSettings
from client_app.runtime import sorted_by_name
from client_app.variants import VARIANTS, class_prior
from client_app.variants.feature_statistics import GridStatistics
from client_app.variants.proximal import Proximal
from data import SettingError
from server_app.composition import ComposedMethod, compose
from server_app.methods import METHODS
from server_app.plugins import find

CLASS_COUNTS = class_prior.QUESTION
"""The question for class counts, and the entry of the train config with their sum."""
NamedVariant = str | Variant
"""A method (fedshift), a variant (logit-shift), or a variant with its settings (LogitShift(scale=0.5))."""
STRATEGIES: Mapping[str, str] = {
    "feature-gradients": "CReFF",
    "augmented-gradients": "CReFFCode",
    "control-variates": "Scaffold",
    "class-weights": "RatioLoss",
}
"""The variants that work with one strategy alone, which sends them something, and that strategy."""
WITHOUT_STRATEGY = ("dynamic-regularization",)
"""The client half of FedDyn. No strategy here has its server half; alone it is another method."""
BEYOND_THE_LOSS = (
    "sample_weights",
    "loss_term",
    "gradient_offset",
    "before",
    "after",
    "private_names",
    "parameters",
)
"""The hooks of a variant that a loss function cannot carry out."""
GRID = ("bits", "range")
"""The settings of the grid on which a question about features is answered; the question states them."""
FLWR_MU = "proximal-mu"
"""The entry of the train config that flwr's FedProx strategy sends."""
IN_THE_LOSS = ("logit_offset", "logit_scale", "loss_weights")


def method_of(name: str) -> str:
    """Return the method that a variant belongs to: of several the one with the fewest variants."""
    having = [method for method in METHODS.values() if name in method.variants]
    return min(having, key=lambda method: len(method.variants)).name


def known_name(variant: Variant) -> str:
    """Return a variant's name; of one that this process has not loaded, such as the user's own, MODULE:CLASS."""
    if variant.name in VARIANTS:
        return variant.name
    kind = type(variant)
    return f"{kind.__module__}:{kind.__qualname__}"


def resolved(
    chosen: NamedVariant | Iterable[NamedVariant], methods: Sequence[str] = ()
) -> tuple[ComposedMethod, list[Variant]]:
    """Return the parts of all that is chosen, with `methods` of the server's, and its variants, sorted by name.

    A variant of a method that is named as well, as in `["fed3r", FeatureStatistics(range=16.0)]`, adds no method.

    Raises SettingError for a name that is none, for parts that contradict each other, and for a variant whose server
    half no strategy here has.
    """
    chosen = [chosen] if isinstance(chosen, str | Variant) else list(chosen)
    for one in chosen:
        # An object beside the name of a method of the user's own may be a part of it.
        if isinstance(one, str) and one not in VARIANTS:
            find(one)
    given = {one.name: one for one in chosen if isinstance(one, Variant)}
    words = [one if isinstance(one, str) else known_name(one) for one in chosen]
    singles = [name for name in words if name in VARIANTS and name not in METHODS]
    names = [*methods, *(name for name in words if name not in singles)]
    covered = {part for name in names if name in METHODS for part in METHODS[name].variants}
    names += [method_of(name) for name in singles if name not in covered]
    parts = compose("+".join(dict.fromkeys(names)) or "fedavg")
    for name in parts.variants:
        if name in WITHOUT_STRATEGY:
            rule = (
                f"needs a server half that fedskew.flower does not have ({name}); use `fedskew run`"
            )
            raise SettingError("variants", method_of(name), rule)
    fixed = {**parts.defaults, **parts.fixed}  # as uniform-sampling fixes resampling.beta-start
    variants = []
    for name in parts.variants:
        section = f"{name}."
        settings = {
            key.removeprefix(section).replace("-", "_"): value
            for key, value in fixed.items()
            if key.startswith(section)
        }
        variants.append(replace(given.get(name) or VARIANTS[name](), **settings))
    return parts, sorted_by_name(variants)


def variants_of(chosen: NamedVariant | Iterable[NamedVariant]) -> list[Variant]:
    """Return the variants of what is chosen. Raises as `resolved`."""
    return resolved(chosen)[1]


def has_grid(variant: Variant) -> bool:
    """Return whether a variant answers with integers on a grid."""
    return isinstance(variant, GridStatistics)


def on_grid(variants: Sequence[Variant], grid: Mapping[str, Any]) -> list[Variant]:
    """Return the variants with the grid that a question states, so that all clients' integers can be summed.

    Raises SettingError for a grid that breaks a rule, ValueError where a variant has been given another grid.
    """
    stated = {name: grid[name] for name in GRID if name in grid}
    return with_stated(variants, GridStatistics, stated)


def with_servers_mu(variants: Sequence[Variant], config: Mapping[str, Any]) -> list[Variant]:
    """Return the variants with the strength that flwr's FedProx strategy sends.

    Raises LookupError where it sends one and no variant pulls, ValueError where the variant has been given another one.
    """
    mu = float(config.get(FLWR_MU, 0.0))
    if mu and not any(isinstance(variant, Proximal) for variant in variants):
        raise LookupError(
            f'the server\'s FedProx sends {FLWR_MU} = {mu:g}, and no variant here pulls: use variants=["fedprox"]'
        )
    return with_stated(variants, Proximal, {"mu": mu} if mu else {})


def with_stated(
    variants: Sequence[Variant], kind: type[Variant], stated: Mapping[str, Any]
) -> list[Variant]:
    """Return the variants, those of a kind with the settings that the server states.

    Raises ValueError where such a variant has been given another value.
    """
    result = list(variants)
    for place, variant in enumerate(variants):
        if not isinstance(variant, kind):
            continue
        for name, value in stated.items():
            own = getattr(variant, name)
            if own != value and not variant.is_default(name):
                raise ValueError(
                    f"{variant.name}.{name} is {own:g} here, and the server's is {value:g}: "
                    "set it in the strategy alone"
                )
        result[place] = replace(variant, **stated)
    return result


def check_model(variants: Sequence[Variant], model: Classifier, inputs: object) -> None:
    """Raise ValueError where a variant does not go with the model or with its inputs."""
    for variant in variants:
        if "batch-norm" in variant.needs and not has_batch_norm(model):
            raise ValueError(
                f"{variant.name} keeps batch norm on the client, and the model has none: leave it out"
            )
        is_image = isinstance(inputs, torch.Tensor) and inputs.dim() == 4
        if "images" in variant.needs and not is_image:
            raise ValueError(f"{variant.name} changes images and needs inputs (N, C, H, W)")


def check_training(variants: Sequence[Variant], method: str, settings: TrainingSettings) -> None:
    """Raise SettingError for a local optimizer that a variant, or the server's method, cannot take.

    `method` is the server's method whose equations assume SGD; empty where there is none.
    """
    assuming = [variant.name for variant in variants if "sgd" in variant.needs]
    for name in [*assuming, *filter(None, [method])]:
        rule = f"does not go with {name}, whose equations assume SGD"
        settings.require(settings.optimizer == "sgd", "optimizer", rule, "use optimizer = sgd")


def check_server(variants: Sequence[Variant], served: Collection[str]) -> None:
    """Raise LookupError where a variant needs a strategy that the server does not run.

    `served` are the variants that the server sent something to, or whose uploads it takes.
    """
    for variant in variants:
        strategy = STRATEGIES.get(variant.name, "")
        uploads = variant.upload.permission and not variant.upload.question
        if (strategy or uploads) and variant.name not in served:
            raise LookupError(
                f"the variant {variant.name} works with its own strategy alone, and the server runs another: "
                f"use strategy = fedskew.flower.{strategy or 'MethodStrategy'}(model, ...) there"
            )


def sums_class_counts(variant: Variant) -> bool:
    """Return whether a variant needs the sum of all clients' class counts."""
    return variant.upload.question == CLASS_COUNTS


def is_loss(variant: Variant) -> bool:
    """Return whether a variant changes the loss, and nothing that a loss function cannot carry out."""
    changes_loss = any(overrides(variant, hook) for hook in IN_THE_LOSS)
    return changes_loss and not any(overrides(variant, hook) for hook in BEYOND_THE_LOSS)
