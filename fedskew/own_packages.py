"""Imports of FedSkew's top-level packages, whose names are common, where a user has a data.py of the same name."""

import importlib.util
import sys
from pathlib import Path

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
