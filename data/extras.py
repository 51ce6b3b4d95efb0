"""Packages that only some commands and file types need, and the line of pip that installs each.

`pip install fedskew` installs what a site of a federation needs. The rest is in extras (pyproject.toml).
"""

from importlib import import_module
from typing import Any

from data.errors import DataError

EXTRAS = {
    "ray": "simulation",
    "psutil": "simulation",  # the extra `coordinator` has it as well
    "sklearn": "simulation",
    "scipy": "simulation",  # the extra `report` has it as well
    "matplotlib": "report",
    "jinja2": "report",
    "markupsafe": "report",
    "starlette": "coordinator",
    "uvicorn": "coordinator",
}
"""By importable name, the extra of each package that more than one place of FedSkew needs."""
DISTRIBUTIONS = {"sklearn": "scikit-learn"}
"""Names on the package index, where they differ from the importable ones."""
EVERYTHING = "all"
"""The extra that has these extras."""


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
        rule = (
            f"{package_of(module)} {verb} it and is not installed: pip install 'fedskew[{extra}]'"
        )
        raise DataError(rule, where=str(where)) from None


def package_of(module: str) -> str:
    """Return the name on the package index of what has an importable module."""
    name = module.split(".")[0]
    return DISTRIBUTIONS.get(name, name)


def explained(error: ModuleNotFoundError, extra: str = "") -> str:
    """Return the sentence for a missing package of an extra, or an empty text for any other module.

    `extra` is the one to name where several have the package.
    """
    name = (error.name or "").split(".")[0]
    if name not in EXTRAS:
        return ""
    return (
        f"{package_of(name)} is not installed, and this command needs it: "
        f"pip install 'fedskew[{extra or EXTRAS[name]}]', or 'fedskew[{EVERYTHING}]' for every command"
    )
