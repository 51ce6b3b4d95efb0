"""A method of the user's own: MODULE:CLASS, or the name of an entry point in the group fedskew.methods."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from importlib.metadata import entry_points
from typing import Any

from client_app.client import Variant
from client_app.user_code import load, load_agreed, read_agreed, source_hash
from client_app.variants import VARIANTS
from data import SettingError
from data.readers.catalog import is_sites
from data.resolve import agreement_of, file_of
from server_app.methods import (
    GROUP,
    METHODS,
    ContractViolation,
    Method,
    breaks_contract,
)
from strategies import SERVER_METHODS
from strategies.core.server import ServerMethod

PART_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
Part = type[Variant] | type[ServerMethod]


def find(name: str) -> Method | None:
    """Return the method of that name, loading one of the user's own; None where there is none.

    Raises SettingError for one that cannot be loaded, or whose parts cannot be parts, with the reason. What they
    compute is looked at by `method_checks.check`.
    """
    if name in METHODS:
        return METHODS[name]
    if ":" in name:
        thing = load("method", name, "class", lambda thing: thing is not None)
        module, _, _ = name.partition(":")
        return enter(name, thing, module)
    for entry in entry_points(group=GROUP, name=name):
        try:
            thing = entry.load()
        except Exception as error:  # a user's package may fail in any way
            rule = f"{entry.value} cannot be imported: {error}"
            raise SettingError("method", name, rule) from error
        return enter(name, thing, entry.module)
    return None


def installed() -> list[str]:
    """Return the names of installed packages' methods; one that FedSkew has itself stays FedSkew's."""
    return sorted({entry.name for entry in entry_points(group=GROUP)} - METHODS.keys())


def register(method: str, model: str, dataset: str) -> None:
    """Let this process know the user's own among the names of `a+b`; what is no name at all, `compose` refuses.

    Between sites, the coordinator's copy of the agreed module, beside federation.toml, is loaded first where the method
    or the model names it: before a module of the same name could be imported from the working folder. Raises DataError
    for a copy that is missing or has another sha256 than the agreed one.
    """
    names = [name.strip() for name in method.split("+")]
    if is_sites(dataset):
        own = {name.partition(":")[0] for name in (model, *names) if ":" in name}
        agreement = agreement_of(dataset) if own else None
        if agreement is not None and agreement.module in own:
            file = file_of(dataset).with_name(f"{agreement.module}.py")
            load_agreed(agreement.module, read_agreed(agreement, file, str(file)), file)
    for name in names:
        find(name)


def enter(name: str, thing: Any, module: str) -> Method:
    """Return what was loaded as a method, and enter it and its parts into the lists."""
    try:
        method = thing if isinstance(thing, Method) else method_of(name, thing, module)
        parts: dict[str, Part] = {**VARIANTS, **SERVER_METHODS}
        for part in method.parts:
            check_part(part)
            parts[part.name] = part
        check_uses(method, parts)
    except (ContractViolation, SettingError) as violation:
        raise breaks_contract(name, str(violation)) from violation
    for part in method.parts:
        if issubclass(part, Variant):
            VARIANTS[part.name] = part
        else:
            SERVER_METHODS[part.name] = part
    modules = [part.__module__ for part in method.parts]
    METHODS[name] = replace(method, name=name, source=source_hash(module, *modules))
    return METHODS[name]


def check_new_methods(names: str) -> None:
    """Check the contract of the user's own methods among the names of `a+b`, once in a process for each of them.

    Every run begins with it. Raises SettingError with the rule that one breaks.
    """
    for name in names.split("+"):
        method = find(name.strip())
        if method is not None and method.source and method not in _passed:
            from server_app.method_checks import check  # with flwr, which a plan does without

            check(method)
            _passed.append(method)


_passed: list[Method] = []
"""The user's own methods that this process has checked, each with the hash of its sources."""


def method_of(name: str, kind: Any, module: str) -> Method:
    """Return the method that one class is. Raises ContractViolation for what is no part of a method."""
    if not isinstance(kind, type):
        raise ContractViolation("must be a class or a Method")
    if not issubclass(kind, Variant | ServerMethod):
        raise ContractViolation("must be a Variant or a ServerMethod of fedskew.methods")
    method = Method(
        name=name,
        what=(kind.__doc__ or "one's own").strip().partition("\n")[0].rstrip("."),
        paper="one's own",
        reveals=f"see {module}",
        parts=(kind,),
    )
    own_name = vars(kind).get("name", "")
    if issubclass(kind, Variant):
        return replace(method, variants=(own_name,))
    method = replace(method, **{place_of(kind): own_name})
    return replace(method, variants=(kind.uses,)) if kind.uses else method


def place_of(kind: type[ServerMethod]) -> str:
    """Return the place that a server method fills. Raises ContractViolation unless it is one."""
    combines = kind.combine is not ServerMethod.combine
    deploys = kind.deploy is not ServerMethod.deploy
    if combines == deploys:
        words = "both" if combines else "none"
        rule = f"{kind.__name__} must fill combine or deploy, and fills {words}"
        raise ContractViolation(rule)
    return "combine" if combines else "deploy"


def check_part(kind: Any) -> None:
    """Raise ContractViolation, or SettingError for its defaults, unless this class can be a part of a method."""
    if not (isinstance(kind, type) and issubclass(kind, Variant | ServerMethod)):
        raise ContractViolation(f"{kind} is no Variant or ServerMethod")
    called = kind.__name__
    parameters = vars(kind).get("__dataclass_params__")
    if parameters is None or not parameters.frozen:
        raise ContractViolation(f"{called} must be a @dataclass(frozen=True)")
    name = vars(kind).get("name")
    if not (isinstance(name, str) and PART_NAME.fullmatch(name)):
        raise ContractViolation(f"{called}.name must be words like my-part")
    existing = VARIANTS.get(name) or SERVER_METHODS.get(name) or kind
    # By name, as a module that is imported again makes another class.
    if (existing.__module__, existing.__qualname__) != (kind.__module__, kind.__qualname__):
        raise ContractViolation(f"{called}.name is {name}, and there is such a part already")
    for field in fields(kind):
        if type(field.default) not in (bool, int, float, str):
            rule = "must have a default that is a number, text, or true or false"
            raise ContractViolation(f"{called}.{field.name} {rule}")
    if issubclass(kind, ServerMethod):
        place_of(kind)
    kind()  # its defaults must keep its own rules


def check_uses(method: Method, parts: Mapping[str, Part]) -> None:
    """Raise ContractViolation for a part that the method names and nobody has, or that takes another's uploads."""
    missing = [part for part in (*method.variants, *method.serving) if part not in parts]
    if missing:
        raise ContractViolation(f"there is no part {', '.join(missing)}: name its class in parts")
    for part in method.serving:
        kind: Any = parts[part]
        if kind.uses and kind.uses not in method.variants:
            rule = f"takes the uploads of {kind.uses}, which must be a variant of it"
            raise ContractViolation(rule)


def sources_of(names: Iterable[str]) -> dict[str, str]:
    """Return the hashes of the sources of those methods that are the user's own, by name."""
    return {name: METHODS[name].source for name in names if METHODS[name].source}
