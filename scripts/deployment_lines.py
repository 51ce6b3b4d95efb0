"""Lines of code that know of hospitals, for the table in docs/explanation/architecture.md.

    python scripts/deployment_lines.py

Lines are counted without blank lines, comments and docstrings.
"""

import ast
import io
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("site_agent", "fedskew/federation", "deploy")
"""What is about hospitals alone."""
FILES = (
    "data/agreement.py",
    "fedskew/cli/federation.py",
    "fedskew/cli/federation_runs.py",
    "data/export.py",
    "data/sites.py",
    "strategies/core/masked_sums.py",
    "client_app/masked_sum.py",
    "client_app/column_sums.py",
    "client_app/local_site.py",
    "server_app/sites.py",
    "strategies/core/node_assignment.py",
    "client_app/summed_questions.py",
    "strategies/core/whole_replies.py",
)
"""What else is written for them."""
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def lines_of_code(text: str) -> int:
    """Return how many lines of a module have code."""
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        # A text that stands alone is a docstring.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def main() -> None:
    """Print a line per folder and per file."""
    for name in (*FOLDERS, *FILES):
        path = ROOT / name
        files = [path] if path.is_file() else sorted(path.rglob("*.py"))
        total = sum(lines_of_code(file.read_text(encoding="utf-8")) for file in files)
        print(f"{total:6,}  {name}")


if __name__ == "__main__":
    main()
