"""The workbench around the Flower app: experiments, engines, sweeps, costs, reports, exports, the command line.

From Python: `run(settings)`, `compare(methods)`, `from_arrays(train, test)`, `load(folder)`, `methods()` and
`check_method(name)`; see docs/guides/python.md.
`fedskew.methods` has the names for a method of your own, `fedskew.flower` the methods inside any Flower app.
The import is cheap: heavy modules are imported by the functions that need them.
"""

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedskew.arrays import from_arrays

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("data", "client_app", "strategies", "server_app")
COMMANDS = ("-m", "fedskew", "fedskew-site")
"""What `sys.argv[0]` ends with where FedSkew itself is the program: then nobody else imports a module called data."""


def find_ours() -> None:
    """Let FedSkew's packages be found, and not modules of the user's that are called the same.

    Python looks in the folder of a script, and for `python -m` in the working folder, before it looks among installed
    packages. For the command line FedSkew's own place goes first. A script may mean its own module, and gets an error.

    Raises:
        ImportError: a module of the user's has the name of one of FedSkew's packages; the message names its file.
    """
    if (ROOT / "fedskew" / PACKAGES[0]).is_dir():
        return  # a wheel has them inside fedskew, where nobody else's can be meant
    for name in PACKAGES:
        file = file_of(name)
        if file is None or file.is_relative_to(ROOT / name):
            continue
        if Path(sys.argv[0]).name in COMMANDS and name not in sys.modules:
            sys.path.insert(0, str(ROOT))
            importlib.invalidate_caches()
            return
        raise ImportError(
            f"{file} has the name of FedSkew's package {name!r}: rename it, or move the script that "
            "imports fedskew to another folder",
            name=name,
            path=str(file),
        )


def file_of(name: str) -> Path | None:
    """Return the file from which a top-level module is, or would be, imported; None where there is none."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # a module that is there without a specification, as tests make them
        return None
    origin = None if spec is None else spec.origin
    return None if origin is None else Path(origin).resolve()


find_ours()

# It imports these packages, so it stands below.
from fedskew import methods  # noqa: E402
from fedskew.api import (  # noqa: E402
    Comparison,
    Result,
    check_method,
    compare,
    load,
    run,
)

__all__ = [
    "Comparison", "Result", "check_method", "compare", "from_arrays", "load", "methods", "run",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Return `from_arrays`, which needs numpy: the import of this package does without."""
    if name != "from_arrays":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fedskew.arrays import from_arrays

    return from_arrays
