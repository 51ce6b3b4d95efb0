"""A method of the user's own: MODULE:CLASS, or the name of an entry point in the group fedskew.methods."""

import contextlib
import hashlib
import re
from collections.abc import Iterable
from dataclasses import MISSING, fields, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from client_app.client import Variant
from client_app.process import code_version
from client_app.user_code import load, load_agreed, read_agreed, source_hash
from client_app.variants import VARIANTS
from data import SettingError
from data.readers.cache import cache_folder
from data.readers.catalog import is_sites
from data.sites import agreement_of, file_of
from server_app.contract_violation import ContractViolation, keep
from server_app.methods import GROUP, METHODS, Method
from strategies.core.server import ServerMethod
from strategies.fedavg import FedAvg
from strategies.registry import SERVER_METHODS

PLACES = ("combine", "monitor", "deploy")
PART_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
Part = type[Variant] | type[ServerMethod]


def find(name: str) -> Method | None:
    """Return the method of that name, loading one of the user's own; None where there is none.

    Raises SettingError for one that cannot be loaded, or whose parts cannot be parts, with the reason. What they
    compute is looked at by `check_contract`.
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


def load_agreed_module(method: str, model: str, dataset: str) -> None:
    """Between sites, load the coordinator's copy of the agreed module where the method or the model names it.

    The copy is beside federation.toml. It is loaded before `register` could import a module of the same name from the
    working folder. Raises DataError for a copy that is missing or has another sha256 than the agreed one.
    """
    own = set()
    for name in (model, *method.split("+")):
        module, colon, _ = name.strip().partition(":")
        if colon:
            own.add(module)
    if not own or not is_sites(dataset):
        return
    agreement = agreement_of(dataset)
    if agreement.module in own:
        file = file_of(dataset).with_name(f"{agreement.module}.py")
        load_agreed(agreement.module, read_agreed(agreement, file, str(file)), file)


def register(method: str) -> None:
    """Let this process know the user's own among the names of `a+b`; what is no name at all, `compose` refuses."""
    for name in method.split("+"):
        find(name.strip())


def enter(name: str, thing: Any, module: str) -> Method:
    """Return what was loaded as a method, and enter it and its parts into the lists."""
    try:
        method = thing if isinstance(thing, Method) else method_of(name, thing, module)
        check_parts(method)
        variants = dict(VARIANTS)
        serving = dict(SERVER_METHODS)
        for part in method.parts:
            if issubclass(part, Variant):
                variants[part.name] = part
            else:
                serving[part.name] = part
        available = variants.keys() | serving.keys()
        missing = [part for part in (*method.variants, *method.serving) if part not in available]
        keep(not missing, f"there is no part {', '.join(missing)}: name its class in parts")
        for part in method.serving:
            taken = serving[part].consumes or serving[part].final_question
            rule = f"takes the uploads of {taken}, which must be a variant of it"
            keep(not taken or taken in method.variants, rule)
        for part in method.parts:
            part()  # its defaults must keep its own rules
    except ContractViolation as violation:
        raise breaks_contract(name, str(violation)) from violation
    except SettingError as error:
        raise breaks_contract(name, f"its default {error}") from error
    VARIANTS.update(variants)
    SERVER_METHODS.update(serving)
    modules = [part.__module__ for part in method.parts]
    METHODS[name] = replace(method, name=name, source=source_hash(module, *modules))
    return METHODS[name]


def breaks_contract(name: str, reason: str) -> SettingError:
    """Return the error of a method that breaks the contract."""
    return SettingError("method", name, f"breaks the contract of methods: {reason}")


def check_contract(method: Method) -> list[str]:
    """Train two tiny clients with a method (method_checks.py), and note that it has passed.

    Returns what was checked, a sentence each. Raises SettingError with the rule of the contract that it breaks.
    """
    from server_app.method_checks import check  # with flwr, which a plan does without

    try:
        checked = check(
            [VARIANTS[name]() for name in method.variants],
            SERVER_METHODS[method.combine]() if method.combine else FedAvg(),
            [SERVER_METHODS[method.monitor]()] if method.monitor else [],
            [SERVER_METHODS[method.deploy]()] if method.deploy else [],
        )
    except ContractViolation as violation:
        raise breaks_contract(method.name, str(violation)) from violation
    with contextlib.suppress(OSError):  # then it is checked again next time
        note = passed_note(method)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()
    return checked


def check_new_methods(names: str) -> None:
    """Check the contract of the user's own methods among the names of `a+b`, once for each state of their sources.

    Every run begins with it. Raises SettingError as `check_contract` does.
    """
    for name in names.split("+"):
        method = find(name.strip())
        if method is not None and method.source and not passed_note(method).exists():
            check_contract(method)


def passed_note(method: Method) -> Path:
    """Return the empty file that is there once these sources have passed with this version of FedSkew."""
    key = f"{method.name}\n{method.source}\n{code_version()}"
    return cache_folder("") / "checked-methods" / hashlib.sha256(key.encode()).hexdigest()


def method_of(name: str, kind: Any, module: str) -> Method:
    """Return the method that one class is. Raises ContractViolation for what is no part of a method."""
    keep(isinstance(kind, type), "must be a class or a Method")
    rule = "must be a Variant (client_app.client) or a ServerMethod"
    keep(issubclass(kind, Variant | ServerMethod), rule)
    stated: dict[str, Any] = {
        "name": name,
        "what": (kind.__doc__ or "one's own").strip().partition("\n")[0].rstrip("."),
        "paper": "one's own",
        "reveals": f"see {module}",
        "parts": (kind,),
    }
    if issubclass(kind, Variant):
        return Method(**stated, variants=(vars(kind).get("name", ""),))
    consumed = tuple(filter(None, (kind.consumes or kind.final_question,)))
    return Method(
        **stated,
        variants=consumed,
        **{place_of(kind): vars(kind).get("name", "")},
    )


def place_of(kind: type[ServerMethod]) -> str:
    """Return the place that a server method fills. Raises ContractViolation unless it is one."""
    filled = [place for place in PLACES if getattr(kind, place) is not getattr(ServerMethod, place)]
    words = " and ".join(filled) or "none"
    rule = f"{kind.__name__} must fill one of {', '.join(PLACES)}, and fills {words}"
    keep(len(filled) == 1, rule)
    return filled[0]


def check_parts(method: Method) -> None:
    """Raise ContractViolation for a part that cannot be a part, whatever it computes."""
    for kind in method.parts:
        fits = isinstance(kind, type) and issubclass(kind, Variant | ServerMethod)
        keep(fits, f"{kind} is no Variant or ServerMethod")
        name = vars(kind).get("name")
        called = kind.__name__
        parameters = vars(kind).get("__dataclass_params__")
        frozen = parameters is not None and parameters.frozen
        keep(frozen, f"{called} must be a @dataclass(frozen=True)")
        in_words = isinstance(name, str) and bool(PART_NAME.fullmatch(name))
        keep(in_words, f"{called}.name must be words like my-part")
        existing = {**VARIANTS, **SERVER_METHODS}.get(str(name))
        if existing is not None:
            # By name, as a module that is imported again makes another class.
            same_module = existing.__module__ == kind.__module__
            same = same_module and existing.__qualname__ == kind.__qualname__
            keep(same, f"{called}.name is {name}, and there is such a part already")
        for field in fields(kind):
            plain = field.default is not MISSING and type(field.default) in (bool, int, float, str)
            rule = "must have a default that is a number, text, or true or false"
            keep(plain, f"{called}.{field.name} {rule}")
        if issubclass(kind, ServerMethod):
            place_of(kind)


def sources_of(names: Iterable[str]) -> dict[str, str]:
    """Return the hashes of the sources of those methods that are the user's own, by name."""
    return {name: METHODS[name].source for name in names if METHODS[name].source}
