"""Compose a method from its parts, and refuse parts that contradict each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from client_app.client import Variant, overrides
from client_app.personal import FINE_TUNED
from client_app.variants import VARIANTS
from data import SettingError
from server_app.methods import METHODS, Method, Setting, no_method
from server_app.plugins import find
from strategies import SERVER_METHODS
from strategies.core.server import AVERAGE, ServerMethod
from strategies.fedavg import FedAvg


@dataclass(frozen=True)
class ComposedMethod:
    """The parts of a composed method, by name."""

    names: tuple[str, ...]
    variants: tuple[str, ...]
    combine: str
    deploys: tuple[str, ...]
    defaults: Mapping[str, Setting] = field(default_factory=dict)
    fixed: Mapping[str, Setting] = field(default_factory=dict)

    @property
    def serving(self) -> tuple[str, ...]:
        """The server methods."""
        return (self.combine, *self.deploys)

    @property
    def sections(self) -> tuple[str, ...]:
        """The parts that have settings of their own."""
        return (*self.variants, *self.serving)


def compose(method: str) -> ComposedMethod:
    """Return the parts of e.g. `fedshift+fedbn+iwds`. Raises SettingError naming both sides of a contradiction."""
    members = members_of(method)
    variants: set[str] = set()
    defaults: dict[str, Setting] = {}
    fixed: dict[str, Setting] = {}
    for member in members:
        variants.update(member.variants)
        defaults.update(member.defaults)
        fixed.update(member.fixed)
    parts = ComposedMethod(
        names=tuple(member.name for member in members if member.name != "fedavg") or ("fedavg",),
        variants=tuple(sorted(variants)),
        combine=next((member.combine for member in members if member.combine), FedAvg.name),
        deploys=tuple(member.deploy for member in members if member.deploy),
        defaults=defaults,
        fixed=fixed,
    )
    rule = contradiction(members, parts)
    if rule:
        raise SettingError("method", method, rule)
    return parts


def members_of(method: str) -> list[Method]:
    """Return the methods that `a+b` names, in one order, whatever the order written: FedSkew's, then the user's.

    Raises SettingError for a name that is none, or is there twice.
    """
    names = [name.strip() for name in method.split("+")]
    for name in names:
        if find(name) is None:
            raise no_method(method, name)
        times = names.count(name)
        if times > 1:
            rule = f"names {name} {times} times; a method is in effect once"
            raise SettingError("method", method, rule, remedy="name it once")
    members = [member for name, member in METHODS.items() if name in names]
    # METHODS has the user's, which alone have a source, in the order in which they were loaded, which is any.
    return sorted(members, key=lambda member: member.source and member.name)


def contradiction(members: Sequence[Method], parts: ComposedMethod) -> str:
    """Return why methods cannot be composed, naming both sides; empty where they can."""
    variants = [VARIANTS[name] for name in parts.variants]
    serving = [SERVER_METHODS[name] for name in parts.serving]
    one_alone = {
        "want to combine the clients' updates, and one can": [
            member.name for member in members if member.combine
        ],
        "want to be the server optimizer, and one can": [
            member.name for member in members if of_server_optimizer(member)
        ],
        "both correct the class prior: together they would correct it twice": [
            variant.name for variant in variants if "uncorrected-prior" in variant.needs
        ],
        "want to draw the samples, and one can": [
            member.name
            for member in members
            if any(overrides(VARIANTS[name], "sample_weights") for name in member.variants)
        ],
        "both say what of batch norm stays on the client, and one can": [
            variant.name for variant in variants if "batch-norm" in variant.needs
        ],
        "both keep the head on the client and train it, each in its own way": [
            variant.name
            for variant in variants
            if "own-head" in variant.needs and overrides(variant, "private_names")
        ],
    }
    for rule, wanting in one_alone.items():
        if len(wanting) > 1:
            return f"{' and '.join(wanting)} {rule}"

    for variant in variants:
        idle = [member.name for member in members if needs_shared(member)]
        if "separate-models" in variant.needs and idle:
            return f"{' and '.join(idle)} would do nothing: {variant.name} shares nothing"
        for part in serving:
            if "whole-model" in part.needs and overrides(variant, "private_names"):
                needed = f"{part.name} needs the whole model to be the same everywhere"
                return f"{needed}, and {variant.name} keeps a part on each client"
            if "shared-head" in part.needs and "own-head" in variant.needs:
                needed = f"{part.name} needs a shared head"
                return f"{needed}, and {variant.name} keeps one on each client"
    return ""


def needs_shared(method: Method) -> bool:
    """Return whether the method is about shared weights: its updates, its server optimizer, a part of the model."""
    if method.serving:
        return True
    if of_server_optimizer(method):
        return True
    return any("shared-weights" in VARIANTS[name].needs for name in method.variants)


def of_server_optimizer(method: Method) -> bool:
    """Return whether the method stands for a server optimizer."""
    return any(key.startswith("server-") for key in (*method.defaults, *method.fixed))


def closed_form_methods() -> list[str]:
    """Return the methods that deploy a head in closed form, in the order of the list of methods."""
    names = []
    for name, method in METHODS.items():
        if any("fixed-features" in SERVER_METHODS[part].needs for part in method.serving):
            names.append(name)
    return names


def row_name(parts: ComposedMethod, deployed: str) -> str:
    """Return the name of one model of a run: `creff+ccvr` trains the rows fedavg, creff and ccvr.

    A part that deploys several models names each PART-VALUE, and so are their rows. The clients' fine-tuned models are
    those of the average's row. A method whose clients have models of their own, as Ditto's, names these models' row.
    """
    if deployed == FINE_TUNED:
        return f"{row_name(parts, AVERAGE)}, {FINE_TUNED}"
    names = []
    for name in parts.names:
        model = model_of(METHODS[name])
        if not model:
            names.append(name)
        elif deployed == model:
            # The clients' own models are named after a variant, and their row after the method.
            names.append(model if METHODS[name].deploy else name)
        elif deployed.startswith(f"{model}-") and deployed not in parts.deploys:
            # One of several. creff-code begins like one of creff's, and is another part's.
            names.append(deployed)
    return "+".join(names or [parts.combine])


def model_of(method: Method) -> str:
    """Return the name of the model that a method adds to the average: deployed, or one of each client's own.

    Empty where it adds none. Of a part that deploys several it is the part's name.
    """
    if method.deploy and SERVER_METHODS[method.deploy].adds_model:
        return method.deploy
    return next((name for name in method.variants if VARIANTS[name].personal_model), "")


def section_types() -> dict[str, type[Variant] | type[ServerMethod]]:
    """Return every part that may have a section of settings, by its name."""
    return {**VARIANTS, **SERVER_METHODS}
