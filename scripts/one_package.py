"""The wheel's one package: `fedskew`, with the project's other packages inside and their imports rewritten.

Only import statements change: `from data.rules import Rule` becomes `from fedskew.data.rules import Rule`. Everything
else that names a module asks data/packages.py.

    python scripts/one_package.py FOLDER
"""

import ast
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUTER = "fedskew"
INNER = ("client_app", "data", "server_app", "site_agent", "strategies")
FILES = ("experiments.yaml",)
"""Files of the clone that the package reads."""


def rewritten(source: str, name: str) -> str:
    """Return a module's source with absolute imports of the inner packages as imports from inside `fedskew`.

    Raises ValueError for an import that binds an inner package's own name, such as `import data`: the name would be
    another one inside.
    """
    lines = source.splitlines(keepends=True)
    changes = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if not inner(alias.name):
                    continue
                if alias.asname is None:
                    remedy = f"write `from ... import` for {alias.name}"
                    raise ValueError(f"{name}:{node.lineno}: {remedy}")
                changes.append((alias.lineno, alias.col_offset))
        elif isinstance(node, ast.ImportFrom) and not node.level and inner(node.module or ""):
            changes.append((node.lineno, node.col_offset + len("from ")))
    for number, column in sorted(changes, reverse=True):
        line = lines[number - 1].encode()  # columns of ast count bytes
        text = line[:column] + f"{OUTER}.".encode() + line[column:]
        if not inner(line[column:].decode().split()[0]):
            raise ValueError(f"{name}:{number}: this import cannot be rewritten")
        lines[number - 1] = text.decode()
    return "".join(lines)


def inner(module: str) -> bool:
    """Return whether a module is one of an inner package."""
    return module.partition(".")[0] in INNER


def write(target: Path) -> None:
    """Write the package `fedskew` into the folder `target`."""
    for package in (OUTER, *INNER):
        folder = target / OUTER if package == OUTER else target / OUTER / package
        for file in sorted((ROOT / package).rglob("*")):
            if file.is_dir() or "__pycache__" in file.parts:
                continue
            copy = folder / file.relative_to(ROOT / package)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if file.suffix == ".py":
                source = file.read_text(encoding="utf-8")
                copy.write_text(rewritten(source, str(file)), encoding="utf-8")
            else:
                shutil.copyfile(file, copy)
    for name in FILES:
        shutil.copyfile(ROOT / name, target / OUTER / name)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
