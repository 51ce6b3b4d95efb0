"""Discovery of variants and server methods: a file in the right folder is enough."""

import pkgutil
from importlib import import_module
from inspect import isclass
from types import ModuleType
from typing import TypeVar

Part = TypeVar("Part")


def parts_in(package: ModuleType, base: type[Part]) -> dict[str, type[Part]]:
    """Return the subclasses of `kind` that a package's modules define and name, by their names, in order."""
    modules = [
        import_module(f"{package.__name__}.{module.name}")
        for module in pkgutil.iter_modules(package.__path__)
    ]
    parts: dict[str, type[Part]] = {}
    for module in modules:
        for part in vars(module).values():
            if not isclass(part) or not issubclass(part, base):
                continue
            name = vars(part).get("name")  # its own, not one that it inherits
            if name is not None:
                parts[name] = part
    return parts
