"""Where FedSkew's packages lie, and their sources by canonical names.

In a clone, and in a Flower app bundle, `data`, `client_app`, `strategies`, `server_app` and `site_agent` are top-level
packages beside `fedskew`. A wheel installs one package, `fedskew`, with the others inside: their names are common, and
a user's own `data` must not collide with ours. The build rewrites the imports (scripts/one_package.py).

Canonical names and sources are those of the clone, so that a clone and a wheel of one release have one code hash.
"""

import re
from collections.abc import Iterable
from pathlib import Path

PACKAGES = ("client_app", "data", "server_app", "site_agent", "strategies")
"""The packages that lie inside `fedskew` in a wheel."""
PREFIX = __name__.removesuffix("data.package_files")
"""What the packages' names begin with: `fedskew.` in a wheel, nothing in a clone."""
INSTALLED_AS_ONE = bool(PREFIX)
"""Whether this code is a wheel's."""
ROOT = Path(__file__).resolve().parent.parent
"""The folder with the packages and experiments.yaml: the clone, or the wheel's `fedskew`."""
NAMES = "|".join(PACKAGES).encode()
INSIDE = re.compile(rb"\bfedskew\.(?=(?:" + NAMES + rb")\b)")
"""What a wheel's sources have before the name of a package: `fedskew.` followed by one of PACKAGES."""


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
        for path, file in files_of(package):
            found[path] = canonical(file.read_bytes())
    return found


def files_of(package: str) -> Iterable[tuple[str, Path]]:
    """Yield the canonical path and the file of every Python source of a package."""
    folder = ROOT / package
    if INSTALLED_AS_ONE and package == "fedskew":
        folder = ROOT
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(folder).parts
        if folder == ROOT and parts[0] in PACKAGES:
            continue  # another package, which a wheel has inside this one
        yield "/".join((package, *parts)), file
