"""Compose a method from its parts, and refuse parts that contradict each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from client_app.client import Variant, overrides
from client_app.personal import FINE_TUNED
from client_app.variants import VARIANTS
from data import SettingError
from server_app.methods import METHODS, Method, Setting, no_method
from server_app.plugins import find
from strategies.core.server import AVERAGE, ServerMethod
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
    members = members_of(method)
    of_members: set[str] = set()
    defaults: dict[str, Setting] = {}
    fixed: dict[str, Setting] = {}
    for member in members:
        of_members.update(member.variants)
        defaults.update(member.defaults)
        fixed.update(member.fixed)
    variants = sorted(of_members)
    refuse_two_for_one_place(method, members, variants)
    refuse_what_would_do_nothing(method, members, variants)
    parts = ComposedMethod(
        names=tuple(member.name for member in members if member.name != "fedavg") or ("fedavg",),
        variants=tuple(variants),
        combine=next((member.combine for member in members if member.combine), FedAvg.name),
        monitors=tuple(member.monitor for member in members if member.monitor),
        deploys=tuple(member.deploy for member in members if member.deploy),
        defaults=defaults,
        fixed=fixed,
    )
    refuse_a_divided_model(method, parts)
    return parts


def closed_form_methods() -> list[str]:
    """Return the methods that deploy a head in closed form, in the order of the list of methods."""
    names = []
    for name, method in METHODS.items():
        if any(SERVER_METHODS[part].closed_form for part in method.serving):
            names.append(name)
    return names


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
    fedskews = [member for member in members if not member.source]
    # METHODS has the user's in the order in which they were loaded, which is any.
    users = [member for member in members if member.source]
    return fedskews + sorted(users, key=lambda member: member.name)


def refuse_two_for_one_place(
    method: str, members: Sequence[Method], variants: Sequence[str]
) -> None:
    """Raise SettingError where two methods, or two of their variants, want what only one can have."""
    combining = [member.name for member in members if member.combine]
    correcting = [name for name in variants if VARIANTS[name].requirements.uncorrected_prior]
    keeping = [name for name in variants if VARIANTS[name].requirements.batch_norm]
    sampling = [member.name for member in members if has_hook(member, "sample_weights")]
    rules = {
        "want to combine the clients' updates, and one can": combining,
        "both correct the class prior: together they would correct it twice": correcting,
        "want to draw the samples, and one can": sampling,
        "both say what of batch norm stays on the client, and one can": keeping,
    }
    for rule, wanting in rules.items():
        if len(wanting) > 1:
            raise SettingError("method", method, f"{' and '.join(wanting)} {rule}")


def has_hook(method: Method, hook: str) -> bool:
    """Return whether a variant of the method has a hook of its own."""
    return any(overrides(VARIANTS[name], hook) for name in method.variants)


def refuse_what_would_do_nothing(
    method: str, members: Sequence[Method], variants: Sequence[str]
) -> None:
    """Raise SettingError for methods about shared weights beside a variant that shares nothing."""
    idle = [member.name for member in members if needs_shared(member)]
    alone = [name for name in variants if VARIANTS[name].requirements.separate_models]
    if idle and alone:
        rule = f"{' and '.join(idle)} would do nothing: {alone[0]} shares nothing"
        raise SettingError("method", method, rule)


def refuse_a_divided_model(method: str, parts: ComposedMethod) -> None:
    """Raise SettingError for a server method that needs the whole model, where clients keep a part of it."""
    dividing = [name for name in parts.variants if overrides(VARIANTS[name], "private_names")]
    whole = [name for name in parts.serving if SERVER_METHODS[name].needs_whole_model]
    if dividing and whole:
        rule = (
            f"{whole[0]} needs the whole model to be the same everywhere, and {dividing[0]} "
            "keeps a part on each client"
        )
        raise SettingError("method", method, rule)
    own_heads = [name for name in parts.variants if VARIANTS[name].requirements.own_head]
    about_heads = [name for name in parts.serving if SERVER_METHODS[name].needs_head]
    if own_heads and about_heads:
        rule = f"{about_heads[0]} needs a shared head, and {own_heads[0]} keeps one on each client"
        raise SettingError("method", method, rule)


def needs_shared(method: Method) -> bool:
    """Return whether the method is about shared weights: its updates, its server optimizer, a part of the model."""
    if method.serving:
        return True
    if any(key.startswith("server-") for key in (*method.defaults, *method.fixed)):
        return True
    return any(VARIANTS[name].requirements.shared_weights for name in method.variants)


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
            continue
        # creff-code begins like a model of creff's, and is another part's.
        one_of_several = deployed.startswith(f"{model}-") and deployed not in parts.deploys
        if (
            deployed == model and not METHODS[name].deploy
        ):  # the clients' own, named after a variant
            names.append(name)
        elif deployed == model or one_of_several:
            names.append(deployed)
    return "+".join(names or [parts.combine])


def model_of(method: Method) -> str:
    """Return the name of the model that a method adds to the average: deployed, or one of each client's own.

    Empty where it adds none. Of a part that deploys several it is the part's name.
    """
    if method.deploy:
        return method.deploy
    return next((name for name in method.variants if VARIANTS[name].personal_model), "")


def section_types() -> dict[str, type[Variant] | type[ServerMethod]]:
    """Return every part that may have a section of settings, by its name."""
    return {**VARIANTS, **SERVER_METHODS}
