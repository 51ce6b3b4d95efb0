"""A Python in which only the packages of `pip install fedskew` can be imported, as at a site that installed no more.

Run as `python tests/only_core.py FILE WORDS...`: it runs FILE with every other installed package hidden. The
environment's ALSO names a package to show all the same, EXTRA an extra whose packages are shown.
"""

import importlib.metadata
import os
import re
import runpy
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]


def plain(distribution: str) -> str:
    """Return a distribution's name as the package index compares it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def core(extra: str = "site") -> list[str]:
    """Return the dependencies in pyproject.toml that no extra has, and those of one; `site` has none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = project["dependencies"] + project["optional-dependencies"][extra]
    return [Requirement(text).name for text in texts]


def brought_by(names: Iterable[str]) -> set[str]:
    """Return the distributions that pip installs with these, from what is installed here; no extra is asked for."""
    found: set[str] = set()
    waiting = [plain(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # of another platform, as its marker says
        for need in map(Requirement, needs):
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                waiting.append(plain(need.name))
    return found


class OnlyThese(PathFinder):
    """Finds no module of a distribution outside `names`, as if it were not installed."""

    names: ClassVar[set[str]] = {
        *brought_by(core(os.environ.get("EXTRA", "site"))),
        "fedskew",
        os.environ.get("ALSO", "fedskew"),
    }
    homes: ClassVar[Mapping[str, list[str]]] = importlib.metadata.packages_distributions()

    @classmethod
    def find_spec(
        cls,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return nothing for a hidden module, and what Python finds for any other."""
        homes = {plain(home) for home in cls.homes.get(fullname.partition(".")[0], [])}
        if homes and not homes & cls.names:
            return None
        return super().find_spec(fullname, path, target)


if __name__ == "__main__":
    sys.meta_path = [OnlyThese if finder is PathFinder else finder for finder in sys.meta_path]
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
