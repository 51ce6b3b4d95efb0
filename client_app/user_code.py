"""Import of a user's own models and methods by MODULE:NAME, from the working folder or an installed package."""

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data import SettingError, require
from data.text import PACKAGES

FOLDER = "FEDSKEW_FOLDER"
"""The environment's word for the user's working folder, for processes that begin in another one."""


def load(key: str, name: str, what: str, fits: Callable[[Any], bool] = callable) -> Any:
    """Return what MODULE:NAME names. Raises SettingError about `key` when it cannot be had, or does not fit."""
    module_name, _, attribute = name.partition(":")
    require(bool(module_name and attribute), key, name, f"must be MODULE:{what.upper()}")
    look_in_folder()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may fail in any way
        rule = f"{module_name} cannot be imported: {error}"
        remedy = ""
        if isinstance(error, ImportError) and error.name in PACKAGES:
            rule += f"; {error.name} is FedSkew's own package here"
            remedy = "give your module another name"
        raise SettingError(key, name, rule, remedy=remedy) from error
    thing = getattr(module, attribute, None)
    if not fits(thing):
        raise SettingError(key, name, f"{module_name} has no {what} {attribute}")
    return thing


def look_in_folder() -> None:
    """Let modules be found in the user's working folder, too: last, so that none there takes an installed one's place.

    Worker processes take over the path of the one that begins them.
    """
    folder = os.environ.get(FOLDER) or str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)


def file_hash(name: str) -> str:
    """Return a hash of the file of MODULE:NAME, or nothing where there is no such file."""
    look_in_folder()
    try:
        spec = importlib.util.find_spec(name.partition(":")[0])
        if spec is None or spec.origin is None:
            return ""
        return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()
    except (ImportError, ValueError, OSError):  # `load` says what is wrong
        return ""


def source_hash(*modules: str) -> str:
    """Return a hash of imported modules' files; of one in a package of all the package's."""
    sha = hashlib.sha256()
    for name in sorted({module.partition(".")[0] for module in modules}):
        module = sys.modules[name]
        files: list[tuple[Path, Path]] = []  # each with its path inside the package
        for folder in map(Path, getattr(module, "__path__", ())):
            for file in sorted(folder.rglob("*.py")):
                files.append((file, file.relative_to(folder)))
        single = getattr(module, "__file__", None)
        if not files and single:  # a module of one file
            files.append((Path(single), Path(Path(single).name)))
        for file, inside in files:
            sha.update(f"{name}/{inside}\n".encode() + file.read_bytes())
    return sha.hexdigest()


def place_of(kind: type) -> str:
    """Return MODULE:CLASS of a class of the user's own, or nothing for one of this package."""
    if kind.__module__.startswith(f"{__package__}."):
        return ""
    return f"{kind.__module__}:{kind.__qualname__}"
