"""Import of a user's own models and methods by MODULE:NAME, from the working folder or an installed package.

Between sites one module can be agreed by its hash. `read_agreed` reads it and `load_agreed` makes a module of the very
bytes that were compared: what happens to the file afterwards changes nothing.
"""

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from data import DataError, SettingError, require
from data.agreement import Agreement
from data.text import PACKAGES, said

FOLDER = "FEDSKEW_FOLDER"
"""The environment's word for the user's working folder, for processes that begin in another one."""
LARGEST_MODULE = 2**20
"""Bytes of the largest agreed module: somebody at each site has to read it."""


@dataclass(frozen=True)
class AgreedModule:
    """A module that this process has made of approved bytes."""

    content: bytes
    module: ModuleType


_agreed: dict[str, AgreedModule] = {}
"""The agreed modules of this process, by name."""


def read_agreed(agreement: Agreement, file: Path | None, where: str) -> bytes:
    """Return the bytes of a party's own file of the agreed module; the file is read once.

    Args:
        agreement: names the module and its sha256.
        file: the party's own; None where it names none.
        where: what an error names in place of a file that is not named.

    Raises:
        DataError: no file, or one with another sha256: both hashes are named.
    """
    agreed = (
        f"federation.toml agrees on module {agreement.module} of sha256 {agreement.module_sha256}"
    )
    if file is None:
        raise DataError(f"is missing: {agreed}", where=where, key="module")
    try:
        with file.open("rb") as opened:
            content = opened.read(LARGEST_MODULE + 1)
    except OSError as error:
        reason = f"cannot be read ({error.strerror}), and {agreed}"
        raise DataError(reason, where=str(file)) from None
    rule = f"has more than {LARGEST_MODULE} bytes, and {agreed}"
    if len(content) > LARGEST_MODULE:
        raise DataError(rule, where=str(file))
    here = hashlib.sha256(content).hexdigest()
    if here != agreement.module_sha256:
        raise DataError(f"has sha256 {here}, and {agreed}", where=str(file))
    return content


def source_text(content: bytes, file: Path) -> str:
    """Return a module's source. Raises DataError for bytes that are not UTF-8.

    A source is shown and compiled as UTF-8, whatever encoding a comment in it asks for: what people read is what runs.
    """
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"is not UTF-8: {error}", where=str(file)) from None


def load_agreed(name: str, content: bytes, file: Path) -> None:
    """Make a module of the bytes of an agreed one, for every later `load` in this process.

    Args:
        name: of the module.
        content: what `read_agreed` has returned.
        file: where it comes from, for tracebacks.

    Raises:
        DataError: the module fails, or another one has its name in this process.
    """
    agreed = _agreed.get(name)
    if agreed is not None:
        same = agreed.content == content
        rule = "another state of this module is loaded already: start a new process"
    else:
        same = name not in sys.modules
        rule = "a module of this name is loaded already: give the agreed one another name"
    if not same:
        raise DataError(rule, where=str(file))
    if agreed is not None:
        return
    module = ModuleType(name)
    module.__file__ = str(file)
    module.__spec__ = ModuleSpec(name, None, origin=str(file))
    # A dataclass looks for its module there while it is made.
    sys.modules[name] = module
    try:
        code = compile(source_text(content, file), str(file), "exec", dont_inherit=True)
        exec(code, module.__dict__)
    except Exception as error:  # a user's module may fail in any way
        del sys.modules[name]
        if isinstance(error, DataError):
            raise
        reason = f"cannot be imported: {type(error).__name__}: {said(error)}"
        raise DataError(reason, where=str(file)) from error
    _agreed[name] = AgreedModule(content, module)


def load(key: str, name: str, what: str, fits: Callable[[Any], bool] = callable) -> Any:
    """Return what MODULE:NAME names. Raises SettingError about `key` when it cannot be had, or does not fit."""
    module_name, _, attribute = name.partition(":")
    require(bool(module_name and attribute), key, name, f"must be MODULE:{what.upper()}")
    agreed = _agreed.get(module_name)
    if agreed is not None:
        thing = getattr(agreed.module, attribute, None)
        # A message may name it: a class or function that the module has imported was shown to nobody.
        own = not callable(thing) or getattr(thing, "__module__", "") == module_name
        require(own and fits(thing), key, name, f"{module_name} has no {what} {attribute}")
        return thing
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


def source_hash(*modules: str) -> str:
    """Return a hash of imported modules' files; of one in a package of all the package's."""
    sha = hashlib.sha256()
    for name in sorted({module.partition(".")[0] for module in modules}):
        if name in _agreed:
            sha.update(f"{name}/{name}.py\n".encode() + _agreed[name].content)
            continue
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


def import_path_of(code_class: type) -> str:
    """Return MODULE:CLASS of a class of the user's own, or nothing for one of this package."""
    if code_class.__module__.startswith(f"{__package__}."):
        return ""
    return f"{code_class.__module__}:{code_class.__qualname__}"
