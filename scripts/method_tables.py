"""Write the table of docs/reference/methods.md from the sources: python scripts/method_tables.py."""

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
    """Return the settings that the name stands for, or the first sentence of each part's docstring."""
    settings = {**method.defaults, **method.fixed}
    sentences = [f"`{key}={value}`" for key, value in settings.items()]
    text = ". ".join(sentences or [first_sentence(part) for part in parts(method)])
    # A bar would end a cell of the table; of a norm's double bar there is a letter.
    return text.replace("||", "‖").replace("|", r"\|")


def first_sentence(part: Part) -> str:
    """Return the first sentence of a part's docstring in one line, without its full stop."""
    text = " ".join((part.__doc__ or "").split())
    sentence, *_ = re.split(r"(?<=\.)\s", text)
    return sentence.rstrip(".")


def file_of(part: Part) -> str:
    """Return the path of a part's file."""
    return f"{part.__module__.replace('.', '/')}.py"


def table(*headings: str, rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    rule = "---|" * len(headings)
    lines = [f"| {' | '.join(headings)} |\n", f"|{rule}\n"]
    lines += [f"| {' | '.join(cells)} |\n" for cells in rows]
    return "".join(lines)


def methods() -> str:
    """Return docs/reference/methods.md's table."""
    rows = []
    for method in METHODS.values():
        files = dict.fromkeys(file_of(part) for part in parts(method))
        links = ", ".join(f"[{Path(file).stem}](../../{file})" for file in files)
        rows.append((f"`{method.name}`", method.paper, links, equations(method), method.reveals))
    return table(
        "method",
        "paper",
        "file",
        "what its parts do",
        "uploads beside the model",
        rows=rows,
    )


def written(file: Path, block: str) -> str:
    """Return a file's text with the table in its place."""
    return BLOCK.sub(lambda marks: marks[1] + "\n" + block + "\n" + marks[2], file.read_text())


PAGE = ROOT / "docs" / "reference" / "methods.md"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE, methods()))
