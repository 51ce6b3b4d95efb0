"""The suite of benchmarks: what it names is there, and its rows become tables in their place."""

import importlib.util
from pathlib import Path

from benchmarks.__main__ import SUITE, table, write
from benchmarks.figures import figure, seconds

ROOT = Path(__file__).resolve().parent.parent


def test_every_benchmark_is_there_and_has_its_place() -> None:
    text = (ROOT / "docs" / "results" / "performance.md").read_text()
    for name, module in SUITE.items():
        spec = importlib.util.find_spec(module)
        assert (
            spec is not None
            and spec.origin is not None
            and "\ndef rows(" in Path(spec.origin).read_text()
        ), module
        assert f"<!-- {name} -->\n" in text and f"<!-- end of {name} -->" in text, name


def test_rows_become_a_table_between_their_marks(tmp_path: Path) -> None:
    rows = [
        figure("ours / theirs", [2.0, 3.0, 9.0], [2.0, 2.0, 3.0], goal=1.2),
        seconds("ours", [2.0, 3.0, 9.0]),
    ]
    assert rows[0] == {
        "name": "ours / theirs",
        "ratio": 1.5,
        "goal": 1.2,
        "least": 1.0,
        "most": 3.0,
        "measurements": 3,
    }
    file = tmp_path / "text.md"
    file.write_text("before\n<!-- a -->\nold\n<!-- end of a -->\nafter\n")
    write(file, "a", table(rows))
    assert (
        "| ours / theirs | 1.5 | 1.0 to 3.0 of 3 | 1.2 |\n\nSeconds: ours 3.0.\n<!-- end of a -->"
        in file.read_text()
    )
    assert file.read_text().startswith("before\n<!-- a -->\n|") and "old" not in file.read_text()
