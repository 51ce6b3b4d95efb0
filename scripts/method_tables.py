"""Write the lists of methods in docs/ from the sources: python scripts/method_tables.py."""

import re
from pathlib import Path

from client_app.client import Variant
from server_app.composition import section_types
from server_app.methods import METHODS, Method
from strategies.core.server import ServerMethod
from strategies.fedavg import FedAvg

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"(<!-- methods[^>]*-->\n).*?(<!-- end of methods -->\n)", re.DOTALL)
Part = type[Variant] | type[ServerMethod]


def parts(method: Method) -> list[Part]:
    """Return the parts that a method stands for; FedAvg's mean where it has none of its own."""
    return [section_types()[name] for name in (*method.variants, *method.serving)] or [FedAvg]


def equations(method: Method) -> str:
    """Return the first sentence of each part's docstring, and the settings that the name stands for."""
    sentences = [
        re.split(r"(?<=\.)\s", " ".join((part.__doc__ or "").split()))[0].rstrip(".")
        for part in parts(method)
    ]
    named = [f"`{key}` = {value}" for key, value in {**method.defaults, **method.fixed}.items()]
    return ". ".join([*sentences, *named]).replace("||", "‖").replace("|", r"\|")


def file_of(part: Part) -> str:
    """Return the path of a part's file."""
    return f"{part.__module__.replace('.', '/')}.py"


def table(*headings: str, rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(cells)} |\n" for cells in (headings, *rows)]
    return "".join([lines[0], f"|{'---|' * len(headings)}\n", *lines[1:]])


def method_list() -> str:
    """Return the table of docs/reference/method-list.md."""
    rows = []
    for method in METHODS.values():
        links = ", ".join(
            f"[{Path(file_of(part)).stem}](../../{file_of(part)})" for part in parts(method)
        )
        rows.append((f"`{method.name}`", method.what, method.paper, links))
    return table("`method`", "what it does", "paper", "file", rows=rows)


def methods() -> str:
    """Return docs/reference/methods.md's table."""
    rows = []
    for method in METHODS.values():
        places = ", ".join(f"`{file_of(part)}: {part.__name__}`" for part in parts(method))
        rows.append((method.name, places, equations(method), method.reveals))
    return table(
        "method", "file: class", "what its parts do", "uploads beside the model", rows=rows
    )


def written(file: Path, block: str) -> str:
    """Return a file's text with the table in its place."""
    return BLOCK.sub(lambda marks: marks[1] + "\n" + block + "\n" + marks[2], file.read_text())


TABLES = {
    ROOT / "docs" / "reference" / "method-list.md": method_list,
    ROOT / "docs" / "reference" / "methods.md": methods,
}


if __name__ == "__main__":
    for file, block in TABLES.items():
        file.write_text(written(file, block()))
