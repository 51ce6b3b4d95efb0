"""What `make mutants` takes as equivalent: the same change of the same file, for a reason, in a line still there."""

import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import mutants  # noqa: E402

DIFF = """--- mutation diff ---
--- a/data/rules.py
+++ b/data/rules.py
@@ -1,3 +1,3 @@
 def add(a, b):
-    return a + b
+    return a - b
"""


def test_an_equivalent_mutant_is_the_same_change_of_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tmp_path / "equivalent.toml"
    change = 'from = "return a + b"\nto = "return a - b"\n'
    listed.write_text(f'[[mutant]]\nfile = "data/rules.py"\n{change}')
    monkeypatch.setattr(mutants, "EQUIVALENT", listed)

    assert mutants.is_equivalent("data/rules.py", DIFF)
    assert not mutants.is_equivalent("data/text.py", DIFF)
    assert not mutants.is_equivalent("data/rules.py", DIFF.replace("a - b", "a * b"))
    listed.write_text('[[mutant]]\nfile = "data/rules.py"\nfrom = "return a + b"\n')
    assert mutants.is_equivalent("data/rules.py", DIFF.replace("a - b", "a * b"))
    assert not mutants.is_equivalent(
        "data/rules.py", DIFF.replace("-    return a + b", "-    return a")
    )
    assert mutants.is_equivalent("data/text.py", "-x = 1e30\n+x = 1e+30")  # the same program


def test_every_equivalent_mutant_is_of_a_line_that_is_still_there_and_has_a_reason() -> None:
    for entry in tomllib.loads(mutants.EQUIVALENT.read_text()).get("mutant", []):
        lines = [line.strip() for line in (ROOT / entry["file"]).read_text().splitlines()]
        changed = entry["from"].splitlines()
        starts = range(len(lines) - len(changed) + 1)
        found = any(lines[start : start + len(changed)] == changed for start in starts)
        assert found, f"{entry['file']} has no longer: {entry['from']}"
        assert entry["reason"].strip() and entry.get("to") != entry["from"]
