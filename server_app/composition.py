"""Compose a method from its parts, and refuse parts that contradict each other."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from client_app.client import Variant, overrides
from client_app.variants import VARIANTS
from data import SettingError
from server_app.methods import METHODS, Method, Setting, no_method
from server_app.plugins import find
from strategies.core.server import ServerMethod
from strategies.fedavg import FedAvg
from strategies.registry import SERVER_METHODS


@dataclass(frozen=True)
class ComposedMethod:
    """The parts of a composed method, by name."""

    names: tuple[str, ...]
    variants: tuple[str, ...]
    combine: str
    monitors: tuple[str, ...]
    deploys: tuple[str, ...]
    defaults: Mapping[str, Setting] = field(default_factory=dict)
    fixed: Mapping[str, Setting] = field(default_factory=dict)

    @property
    def serving(self) -> tuple[str, ...]:
        """The server methods."""
        return (self.combine, *self.monitors, *self.deploys)

    @property
    def sections(self) -> tuple[str, ...]:
        """The parts that have settings of their own."""
        return (*self.variants, *self.serving)


def compose(method: str) -> ComposedMethod:
    """Return the parts of e.g. `fedshift+fedbn+iwds`. Raises SettingError naming both sides of a contradiction."""
    names = [name.strip() for name in method.split("+")]
    for name in names:
        if find(name) is None:
            raise no_method(method, name)
        if names.count(name) > 1:
            rule = (
                f"names {name} {names.count(name)} times; a method is in effect once: name it once"
            )
            raise SettingError("method", method, rule)
    chosen = [
        METHODS[name] for name in METHODS if name in names
    ]  # one order, whatever the order written
    members = sorted(chosen, key=lambda member: member.name if member.source else "")  # or loaded
    variants = tuple(sorted(set().union(*(member.variants for member in members))))
    corrections = [name for name in variants if VARIANTS[name].requirements.uncorrected_prior]
    samplers = [
        member.name
        for member in members
        if any(overrides(VARIANTS[name], "sample_weights") for name in member.variants)
    ]
    keeping = [name for name in variants if VARIANTS[name].requirements.batch_norm]
    needing = [member.name for member in members if needs_shared(member)]
    for wanting, what in (
        (
            [member.name for member in members if member.combine],
            "want to combine the clients' updates, and one can",
        ),
        (corrections, "both correct the class prior: together they would correct it twice"),
        (samplers, "want to draw the samples, and one can"),
        (keeping, "both say what of batch norm stays on the client, and one can"),
    ):
        if len(wanting) > 1:
            raise SettingError("method", method, f"{' and '.join(wanting)} {what}")
    if needing and (
        alone := [name for name in variants if VARIANTS[name].requirements.separate_models]
    ):
        raise SettingError(
            "method", method, f"{' and '.join(needing)} would do nothing: {alone[0]} shares nothing"
        )
    combine = next((member.combine for member in members if member.combine), FedAvg.name)
    monitors = tuple(member.monitor for member in members if member.monitor)
    deploys = tuple(member.deploy for member in members if member.deploy)
    dividing = [name for name in variants if overrides(VARIANTS[name], "private_names")]
    whole = [
        name for name in (combine, *monitors, *deploys) if SERVER_METHODS[name].needs_whole_model
    ]
    if dividing and whole:
        rule = (
            f"{whole[0]} needs the whole model to be the same everywhere, and {dividing[0]} "
            "keeps a part on each client"
        )
        raise SettingError("method", method, rule)
    kept = [member.name for member in members if member.name != "fedavg"] or ["fedavg"]
    return ComposedMethod(
        names=tuple(kept),
        variants=variants,
        combine=combine,
        monitors=monitors,
        deploys=deploys,
        defaults={key: value for member in members for key, value in member.defaults.items()},
        fixed={key: value for member in members for key, value in member.fixed.items()},
    )


def needs_shared(method: Method) -> bool:
    """Return whether the method is about shared weights: its updates, its server optimizer, a part of the model."""
    serves = method.serving or any(
        key.startswith("server-") for key in (*method.defaults, *method.fixed)
    )
    return bool(serves) or any(
        VARIANTS[name].requirements.shared_weights for name in method.variants
    )


def row_name(parts: ComposedMethod, deployed: str) -> str:
    """Return the name of one deployed model of a run: `creff+ccvr` trains the rows fedavg, creff and ccvr.

    A part that deploys several models names each PART-VALUE, and so are their rows.
    """
    names = []
    for name in parts.names:
        model = METHODS[name].deploy
        if not model:
            names.append(name)
        elif deployed == model or (
            deployed not in parts.deploys and deployed.startswith(f"{model}-")
        ):
            names.append(deployed)
    return "+".join(names or [parts.combine])


def section_types() -> dict[str, type[Variant] | type[ServerMethod]]:
    """Return every part that may have a section of settings, by its name."""
    return {**VARIANTS, **SERVER_METHODS}
