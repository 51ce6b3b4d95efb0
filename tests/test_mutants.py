"""What `make mutants` decides by itself: which tests a mutant gets, and what counts as noticed and as equivalent."""

import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import mutants  # noqa: E402
import warm_pytest  # noqa: E402
from mutants import FAILED, PASSED, Mutant, Verdict  # noqa: E402

DIFF = """--- mutation diff ---
--- a/data/rules.py
+++ b/data/rules.py
@@ -1,3 +1,3 @@
 def add(a, b):
-    return a + b
+    return a - b
"""


def of_lines(first: int, last: int) -> Mutant:
    return Mutant("data/rules.py", "core/AddNot", 0, (first, 4), (last, 9))


def test_a_mutant_gets_the_tests_of_its_lines_near_and_quick_ones_first() -> None:
    by_line = {"data/rules.py": {1: set[str](), 2: {"t.py::two"}, 3: {"test_rules.py::near"}}}
    seconds = defaultdict(float, {"t.py::two": 2.0, "test_rules.py::near": 6.0})
    everything = ["test_rules.py::near", "t.py::two"]
    assert mutants.selected(by_line, seconds, 40, of_lines(2, 2)) == (["t.py::two"], 2.0)
    assert mutants.selected(by_line, seconds, 8, of_lines(2, 3)) == (everything, 8.0)
    assert mutants.selected(by_line, seconds, 7, of_lines(2, 3)) == (everything[:1], 6.0)
    # Only imports execute the first line: whatever runs the file is asked.
    assert mutants.selected(by_line, seconds, 40, of_lines(1, 1)) == (everything, 8.0)
    assert mutants.selected({}, seconds, 40, of_lines(1, 1)) == ([], 0.0)


def test_a_test_that_fails_anyway_is_selected_for_nothing() -> None:
    by_line = {"data/rules.py": {2: {"t.py::good", "t.py::bad"}, 3: {"t.py::bad"}}}
    kept = mutants.without({"t.py::bad"}, by_line)
    assert kept == {"data/rules.py": {2: {"t.py::good"}, 3: set()}}


def test_failures_are_read_from_the_last_summary_of_pytests_output() -> None:
    tests = ["t.py::one", "t.py::two[a - b]", "t.py::three"]
    heading = "=== short test summary info ===\n"
    inner = f"{heading}FAILED t.py::three - in a pytest that a test starts\n"
    output = f"{inner}{heading}FAILED t.py::one - assert 1 == 2 - 0\nFAILED t.py::two[a - b] - no\n"
    assert mutants.failed_tests(output, tests) == ("t.py::one", "t.py::two[a - b]")
    assert mutants.failed_tests("3 passed in 0.1s\n", tests) == ()


def test_a_crash_counts_only_where_the_tests_pass_without_the_mutant() -> None:
    crashed = (-11, "")
    assert mutants.outcome(lambda _: crashed, lambda: (PASSED, ""), 30) == crashed
    assert mutants.outcome(lambda _: (FAILED, ""), lambda: crashed, 30) == (FAILED, "")
    with pytest.raises(RuntimeError):
        mutants.outcome(lambda _: crashed, lambda: crashed, 30)


def test_an_equivalent_mutant_is_the_same_change_of_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tmp_path / "equivalent.toml"
    change = 'from = "return a + b"\nto = "return a - b"\n'
    listed.write_text(f'[[mutant]]\nfile = "data/rules.py"\n{change}')
    monkeypatch.setattr(mutants, "EQUIVALENT", listed)

    def counts_as_equivalent(path: str, diff: str) -> bool:
        mutant = Mutant(path, "core/AddNot", 0, (2, 4), (2, 9))
        return mutants.equivalent(Verdict(mutant, True, 3, diff, ()))

    assert counts_as_equivalent("data/rules.py", DIFF)
    assert not counts_as_equivalent("data/text.py", DIFF)
    assert not counts_as_equivalent("data/rules.py", DIFF.replace("a - b", "a * b"))
    assert counts_as_equivalent("data/text.py", "-x = 1e30\n+x = 1e+30")  # the same program


def test_every_equivalent_mutant_is_of_a_line_that_is_still_there_and_has_a_reason() -> None:
    for entry in tomllib.loads(mutants.EQUIVALENT.read_text()).get("mutant", []):
        lines = [line.strip() for line in (ROOT / entry["file"]).read_text().splitlines()]
        changed = entry["from"].splitlines()
        starts = range(len(lines) - len(changed) + 1)
        found = any(lines[start : start + len(changed)] == changed for start in starts)
        assert found, f"{entry['file']} has no longer: {entry['from']}"
        assert entry["reason"].strip() and entry["to"] != entry["from"]


def test_a_fork_that_has_the_code_of_before_the_mutant_is_refused(tmp_path: Path) -> None:
    warm_pytest.check_outside(tmp_path)
    with pytest.raises(SystemExit):
        warm_pytest.check_outside(ROOT)
