"""What `make mutants` decides by itself: which places it changes, which tests it runs, and what counts as equivalent.

Neither Cosmic Ray nor coverage.py is needed here.
"""

import ast
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import mutants  # noqa: E402
import warm_pytest  # noqa: E402
from mutants import Mutant, Verdict  # noqa: E402

PACKAGES = {"data", "client_app", "strategies", "server_app", "site_agent", "fedskew"}

DIFF = """--- mutation diff ---
--- a/data/rules.py
+++ b/data/rules.py
@@ -1,3 +1,3 @@
 def add(a, b):
-    return a + b
+    return a - b
"""


def mutant(first: int, last: int) -> Mutant:
    return Mutant("data/rules.py", "core/AddNot", 0, (first, 4), (last, 9))


def verdict(path: str = "data/rules.py", diff: str = DIFF) -> Verdict:
    return Verdict(Mutant(path, "core/AddNot", 0, (2, 4), (2, 9)), True, 3, diff, ())


def test_it_is_imported_without_the_tools_that_only_its_run_needs() -> None:
    outside = ast.parse(Path(mutants.__file__).read_text()).body
    imported = {
        name.name.partition(".")[0]
        for node in outside
        if isinstance(node, ast.Import)
        for name in node.names
    }
    imported |= {
        (node.module or "").partition(".")[0]
        for node in outside
        if isinstance(node, ast.ImportFrom)
    }
    assert imported <= set(sys.stdlib_module_names)


def test_the_tests_of_a_mutant_execute_one_of_its_lines() -> None:
    by_line = {"data/rules.py": {2: {"t.py::two"}, 3: {"t.py::three"}, 9: {"t.py::nine"}}}
    seconds = defaultdict(float, {"t.py::two": 2.0, "t.py::three": 1.0, "t.py::nine": 3.0})
    assert mutants.selected(by_line, seconds, 40, mutant(2, 2)) == (["t.py::two"], 2.0)
    assert mutants.selected(by_line, seconds, 40, mutant(2, 3))[0] == ["t.py::three", "t.py::two"]


def test_a_line_that_only_imports_execute_gets_the_tests_of_its_file() -> None:
    by_line = {"data/rules.py": {1: set[str](), 2: {"t.py::two"}}, "other.py": {1: {"t.py::one"}}}
    chosen, _ = mutants.selected(by_line, defaultdict(float), 40, mutant(1, 1))
    assert chosen == [mutants.CONSTANTS, "t.py::two"]
    assert mutants.selected({}, defaultdict(float), 40, mutant(1, 1)) == ([], 0.0)


def test_a_test_that_fails_anyway_is_selected_for_nothing() -> None:
    by_line = {"data/rules.py": {2: {"t.py::good", "t.py::bad"}, 3: {"t.py::bad"}}}
    kept = mutants.without({"t.py::bad"}, by_line)
    assert kept == {"data/rules.py": {2: {"t.py::good"}, 3: set()}}


def test_the_test_of_constants_is_found_by_its_name() -> None:
    file, _, name = mutants.CONSTANTS.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text()


def test_tests_named_after_the_file_come_first_and_the_budget_is_not_exceeded() -> None:
    names = ["a.py::quick", "a.py::slow", "test_rules.py::near", "a.py::long"]
    seconds = defaultdict(float, zip(names, [1.0, 5.0, 6.0, 50.0], strict=True))
    by_line = {"data/rules.py": {2: set(names)}}
    chosen, total = mutants.selected(by_line, seconds, 8, mutant(2, 2))
    assert chosen == ["test_rules.py::near", "a.py::quick"] and total == 7.0


def test_annotations_of_arguments_results_and_variables_are_found() -> None:
    source = "async def f(a: int | None, b=1 | 2) -> str | None:\n    c: 'x' = 3 | 4\n"
    spans = mutants.spans_without_effect(ast.parse(source))
    lines = source.splitlines()
    texts = {lines[start[0] - 1][start[1] : end[1]] for start, end in spans}
    assert texts == {"int | None", "str | None", "'x'"}


def test_the_summary_of_an_inner_run_of_pytest_is_not_read() -> None:
    heading = "=== short test summary info ===\n"
    output = f"{heading}ERROR inner/test_a.py\n{heading}FAILED test_b.py::test_c - boom\n"
    assert mutants.failed_tests(output, ["test_b.py::test_c"]) == ("test_b.py::test_c",)


@pytest.mark.parametrize(
    "part",
    [
        "client_app", "strategies", "partitions", "evaluation", "selection", "policy", "approval", "race",
        "diagnosis", "uncertainty", "inference", "ranking",
    ],
)  # fmt: skip
def test_every_part_that_computes_or_decides_has_mutants(part: str) -> None:
    files = [file for pattern in mutants.MODULES for file in mutants.ROOT.glob(pattern)]
    assert any(part in file.relative_to(mutants.ROOT).as_posix() for file in files)


def test_arguments_that_only_stop_mistakes_are_left_out() -> None:
    source = "for a, b in zip(c, d, strict=True):\n    f(loose=True)\n"
    (span,) = mutants.spans_without_effect(ast.parse(source))
    assert span == ((1, 29), (1, 33))


def test_what_only_type_checkers_and_later_code_meet_is_left_out() -> None:
    source = (
        "if TYPE_CHECKING:\n    import x\nclass A:\n    @abstractmethod\n    def f(self): ...\n"
        "class B(Protocol):\n    x: int\n"
    )
    assert mutants.spans_without_effect(ast.parse(source)) == [
        ((1, 3), (1, 16)),
        ((6, 0), (7, 10)),
        ((7, 7), (7, 10)),
        ((4, 4), (5, 0)),
    ]


def test_the_same_program_written_in_another_way_is_no_mutant() -> None:
    assert mutants.same_program(["x = 1e30"], ["x = 1e+30"])
    assert not mutants.same_program(["x = 1e30"], ["x = 1e31"])
    assert not mutants.same_program(["if a:"], ["if  a:"])  # no whole statement


def test_a_change_is_what_a_diff_removes_and_adds() -> None:
    assert mutants.changed_lines(DIFF) == (["return a + b"], ["return a - b"])


def test_an_equivalent_mutant_is_the_same_change_of_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tmp_path / "equivalent.toml"
    listed.write_text(
        '[[mutant]]\nfile = "data/rules.py"\nfrom = "return a + b"\nto = "return a - b"\n'
    )
    monkeypatch.setattr(mutants, "EQUIVALENT", listed)
    assert mutants.equivalent(verdict())
    assert not mutants.equivalent(verdict(path="data/text.py"))
    assert not mutants.equivalent(verdict(diff=DIFF.replace("a - b", "a * b")))


def test_every_equivalent_mutant_is_of_a_line_that_is_still_there_and_has_a_reason() -> None:
    for entry in tomllib.loads(mutants.EQUIVALENT.read_text()).get("mutant", []):
        assert entry.keys() == {"file", "from", "to", "reason"}, entry
        lines = [line.strip() for line in (ROOT / entry["file"]).read_text().splitlines()]
        changed = entry["from"].splitlines()
        starts = range(len(lines) - len(changed) + 1)
        found = any(lines[start : start + len(changed)] == changed for start in starts)
        assert found, f"{entry['file']} has no longer: {entry['from']}"
        assert entry["reason"].strip() and entry["to"] != entry["from"]


def test_failures_are_read_from_the_end_of_pytests_output() -> None:
    tests = ["t.py::one", "t.py::two[a - b]", "t.py::three", "u.py::four"]
    output = """F
FAILED t.py::one - assert 1 == 2 - 0
FAILED t.py::two[a - b] - AssertionError
ERROR u.py - ImportError: no
ERROR inner/test_a.py
"""
    assert mutants.failed_tests(output, tests) == ("t.py::one", "t.py::two[a - b]", "u.py")
    assert mutants.failed_tests("3 passed in 0.1s\n", tests) == ()


@pytest.fixture
def plain_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pytest that starts quickly, as it loads no plugin."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.mark.usefixtures("plain_pytest")
def test_a_name_that_pytest_does_not_find_ends_the_measurement(tmp_path: Path) -> None:
    """One such name makes pytest fail before any test, which would count as noticed."""
    (tmp_path / "test_here.py").write_text("def test_it():\n    pass\n")
    mutants.check_found(tmp_path, {"here.py": {1: {"test_here.py::test_it"}}})
    with pytest.raises(SystemExit, match=r"cannot select(.|\n)*test_gone"):
        mutants.check_found(tmp_path, {"here.py": {1: {"test_here.py::test_gone"}}})


@pytest.mark.usefixtures("plain_pytest")
def test_a_test_that_fails_without_a_mutant_ends_the_measurement(tmp_path: Path) -> None:
    (tmp_path / "test_here.py").write_text(
        "def test_good():\n    pass\n\ndef test_bad():\n    assert 0\n"
    )
    good, bad = (
        Verdict(mutant(1, 1), False, 1, DIFF, (f"test_here.py::test_{name}",))
        for name in ("good", "bad")
    )

    def run_tests(tests: Sequence[str]) -> tuple[int, str]:
        command = [sys.executable, *mutants.pytest_words(tests, tmp_path)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stdout

    mutants.check_failures([good], run_tests)
    with pytest.raises(SystemExit, match=r"without one:\ntest_here.py::test_bad"):
        mutants.check_failures([good, bad], run_tests)


def test_tests_of_near_files_come_first_and_others_run_only_where_these_pass() -> None:
    tests = [f"{file}.py::test" for file in "abcd"]
    ran = []

    def run_tests(part: Sequence[str], limit_s: float) -> tuple[int, str]:
        ran.append(list(part))
        return int("fail.py::test" in part), ""

    assert mutants.run_near_first([], 9, run_tests) == (mutants.PASSED, "")
    assert mutants.run_near_first(tests, 9, run_tests) == (mutants.PASSED, "")
    assert mutants.run_near_first(["fail.py::test", *tests], 9, run_tests) == (mutants.FAILED, "")
    assert ran == [tests[:3], tests[3:], ["fail.py::test", *tests[:2]]]


def test_a_mutant_whose_tests_never_end_is_noticed_by_the_time_limit() -> None:
    limits = []

    def run_mutated(limit_s: float) -> tuple[None, str]:
        limits.append(limit_s)
        return None, ""

    status, _ = mutants.outcome(run_mutated, lambda: (mutants.PASSED, ""), 30)
    assert status is None and limits == [30]


def test_tests_that_are_slow_without_the_mutant_too_get_more_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine is busy: the time limit that the first try exceeded says nothing about the mutant."""
    clock = iter([100.0, 120.0])
    monkeypatch.setattr(mutants.time, "monotonic", lambda: next(clock))
    limits = []

    def run_mutated(limit_s: float) -> tuple[int | None, str]:
        limits.append(limit_s)
        return (None, "") if limit_s == 30 else (mutants.PASSED, "")

    status, _ = mutants.outcome(run_mutated, lambda: (mutants.PASSED, ""), 30)
    assert status == mutants.PASSED and limits == [30, 80.0]


def test_a_crash_counts_only_where_the_tests_pass_without_the_mutant() -> None:
    crashed = (-11, "")
    assert mutants.outcome(lambda _: crashed, lambda: (mutants.PASSED, ""), 30) == crashed
    with pytest.raises(RuntimeError, match="tests end with -11 unchanged"):
        mutants.outcome(lambda _: crashed, lambda: crashed, 30)


def test_warm_pytest_imports_no_module_of_the_project(tmp_path: Path) -> None:
    """A fork of a process that has one would run the code from before the mutant."""
    assert not {name.partition(".")[0] for name in warm_pytest.PRELOADED} & PACKAGES
    warm_pytest.check_outside(tmp_path)
    with pytest.raises(SystemExit, match=r"imported before the fork: .*test_mutants"):
        warm_pytest.check_outside(ROOT)


def test_a_fork_of_warm_pytest_answers_with_its_exit_status_or_ends_at_the_limit(
    tmp_path: Path,
) -> None:
    test = tmp_path / "test_here.py"
    test.write_text(
        "import time\n\ndef test_it():\n    pass\n\ndef test_long():\n    time.sleep(60)\n"
    )
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={tmp_path}"]
    status, output = warm_pytest.forked([*arguments, f"{test}::test_it"], 60, tmp_path)
    assert (status, "1 passed" in output) == (0, True), output
    assert warm_pytest.forked([*arguments, f"{test}::test_gone"], 60, tmp_path)[0] == 4
    assert warm_pytest.forked([*arguments, f"{test}::test_long"], 0.5, tmp_path)[0] is None
