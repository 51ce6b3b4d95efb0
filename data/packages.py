"""Where FedSkew's packages lie, with their sources by canonical names, and packages that only some commands need.

In a clone, and in a Flower app bundle, `data`, `client_app`, `strategies`, `server_app` and `site_agent` are top-level
packages beside `fedskew`. A wheel installs one package, `fedskew`, with the others inside: their names are common, and
a user's own `data` must not collide with ours. The build rewrites the imports (scripts/one_package.py).

Canonical names and sources are those of the clone, so that a clone and a wheel of one release have one code hash.

`pip install fedskew` installs what a site of a federation needs. The rest is in extras (pyproject.toml).
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from data.errors import DataError

PACKAGES = ("client_app", "data", "server_app", "site_agent", "strategies")
"""The packages that lie inside `fedskew` in a wheel."""
PREFIX = __name__.removesuffix("data.packages")
"""What the packages' names begin with: `fedskew.` in a wheel, nothing in a clone."""
INSTALLED_AS_ONE = bool(PREFIX)
"""Whether this code is a wheel's."""
ROOT = Path(__file__).resolve().parent.parent
"""The folder with the packages and experiments.yaml: the clone, or the wheel's `fedskew`."""
NAMES = "|".join(PACKAGES).encode()
INSIDE = re.compile(rb"\bfedskew\.(?=(?:" + NAMES + rb")\b)")
"""What a wheel's sources have before the name of a package: `fedskew.` followed by one of PACKAGES."""
EXTRAS = {
    "ray": "simulation",
    "psutil": "simulation",  # the extra `coordinator` has it as well
    "sklearn": "simulation",
    "scipy": "simulation",  # the extra `report` has it as well, and the two below
    "jinja2": "simulation",
    "markupsafe": "simulation",
    "matplotlib": "report",
    "starlette": "coordinator",
    "uvicorn": "coordinator",
}
"""By importable name, the extra of each package that more than one place of FedSkew needs."""
EVERYTHING = "all"
"""The extra that has these extras."""


def module_name(name: str) -> str:
    """Return the importable name of a module of FedSkew's, such as `client_app.app`, for another process."""
    package = name.partition(".")[0]
    return name if package == "fedskew" else PREFIX + name


def canonical(source: bytes) -> bytes:
    """Return a source file as it stands in a clone. A clone's own sources are changed in the same way."""
    return INSIDE.sub(b"", source)


def sources(*packages: str) -> dict[str, bytes]:
    """Return the canonical Python sources of packages by canonical path, sorted by path in each package."""
    found = {}
    for package in packages:
        folder = ROOT / package
        if INSTALLED_AS_ONE and package == "fedskew":
            folder = ROOT
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(folder).parts
            if folder == ROOT and parts[0] in PACKAGES:
                continue  # another package, which a wheel has inside this one
            found["/".join((package, *parts))] = canonical(file.read_bytes())
    return found


def needed(module: str, extra: str, where: object, verb: str = "reads") -> Any:
    """Return a module of an extra.

    Args:
        module: Its importable name.
        extra: The extra of FedSkew that has it.
        where: The file or setting that needs it.
        verb: What the package does to it.

    Raises:
        DataError: It is not installed. The sentence names the line of pip.
    """
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        rule = f"{package} {verb} it and is not installed: pip install 'fedskew[{extra}]'"
        raise DataError(rule, where=str(where)) from None


def explained(error: ModuleNotFoundError, extra: str = "") -> str:
    """Return the sentence for a missing package of an extra, or an empty text for any other module.

    `extra` is the one to name where several have the package.
    """
    name = (error.name or "").split(".")[0]
    if name not in EXTRAS:
        return ""
    return (
        f"{name} is not installed, and this command needs it: "
        f"pip install 'fedskew[{extra or EXTRAS[name]}]', or 'fedskew[{EVERYTHING}]' for every command"
    )
