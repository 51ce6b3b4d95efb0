"""Break the code in one place at a time and see whether a fast test notices.

    make mutants
    python scripts/mutants.py [--sample 150] [--seed 0] [--jobs 2] [--budget 40] [--minutes M] [--write FILE]

Cosmic Ray finds the places and makes each change (a mutant). For each mutant this script runs the fast tests that
execute the changed lines, as measured once with coverage.py, and stops at the first that fails. A mutant that no test
notices survives. Survivors are printed as diffs. A survivor that cannot change any behavior is listed, with the reason,
in scripts/equivalent_mutants.toml and does not count. With --minutes the run ends after that time: the mutants come in
random order, so that those tested by then are a smaller random sample.

A mutant counts as noticed only through a test that passes without it: before the first mutant the script checks that
pytest finds every selected test, and after the last one it runs the tests that failed on the unchanged code. Where the
tests crash or exceed their time, the same tests run on the unchanged code at once: what they take there and then is the
measure, so that a busy machine neither hides a mutant nor makes one look noticed. The table counts these by themselves.

The script works on clones of the last commit, so it never changes your working tree. The exit status is 1 if more than
`--goal` percent of the mutants that can change something survive.
"""

import argparse
import ast
import difflib
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import Queue, current_process
from pathlib import Path
from queue import Empty

# cosmic_ray and coverage are imported where they are used: they are an optional extra, and tests/test_mutants.py runs
# without them.

ROOT = Path(__file__).resolve().parents[1]
MODULES = (
    "client_app/**/*.py",
    "strategies/**/*.py",
    "data/partitions.py",
    "data/holdouts.py",
    "server_app/evaluation.py",
    "server_app/round_selection.py",
    "site_agent/approval.py",
    "site_agent/policy.py",
    "site_agent/run_approval.py",
    "fedskew/select.py",
    "fedskew/diagnosis/*.py",
    "fedskew/report/inference.py",
)
"""What is mutated: what computes a number, and what decides whether a message is accepted."""
EQUIVALENT = ROOT / "scripts" / "equivalent_mutants.toml"
LEFT_OUT = ("VariableInserter", "VariableReplacer", "Is_Eq", "IsNot_NotEq", "Eq_Is", "NotEq_IsNot")
"""Ends of operator names that are not used: most of their mutants are the same program."""
GUARDS = ("strict", "frozen")
"""Arguments of zip and dataclass that stop mistakes of later code; no correct call reaches them."""
BEGIN, END = "<!-- make mutants -->", "<!-- end of make mutants -->"
START_UP_S = 30
"""Seconds that a test process gets beyond its tests' own time."""
SLOWER = 4
"""A test process has run into its time limit where the unchanged code takes less than the limit over SLOWER."""
LISTS_OF_VALUES = "tests/test_reference_pages.py"
"""The tests of the generated pages, which state the defaults of all settings."""
NEAR_FILES = 3
"""The tests of so many files run before the rest: most mutants are noticed there, and pytest imports no other file."""
PASSED, FAILED, NONE_FOUND = 0, 1, 5
"""Exit statuses of pytest."""

Position = tuple[str, tuple[int, int], tuple[int, int]]
"""A file and the start and end of a node in it: lines from 1, columns from 0."""


warm: "WarmPytest"
"""The one of this process, where it is one that tests mutants."""


@dataclass(frozen=True)
class Mutant:
    """One change of the code. `path` is relative to the repository."""

    path: str
    operator: str
    occurrence: int
    start: tuple[int, int]
    end: tuple[int, int]


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant.

    `tests` is the number of tests that were selected for it. `failed` are the tests that failed, or, where pytest could
    not load a test file, that file; it is empty for a mutant that survived, ended pytest itself or made it exceed the
    time limit.
    """

    mutant: Mutant
    survived: bool
    tests: int
    diff: str
    failed: tuple[str, ...]


def main() -> int:
    """Measure coverage, sample mutants, test them and print the survivors. Returns the exit status."""
    options = arguments()
    commit = last_commit()  # now, as others may follow while this runs
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fedskew-mutants-") as folder:
        clones = [clone(Path(folder) / f"clone-{job}") for job in range(options.jobs)]
        print(f"measuring what each fast test executes ({options.jobs} processes)", flush=True)
        tests_by_line, seconds_by_test = measured(clones[0], options.jobs, options.tests)
        check_found(clones[0], tests_by_line)
        mutants = sample(clones[0], options.sample, random.Random(options.seed), options.only)
        print(f"{len(mutants)} mutants, after {minutes(started)}", flush=True)
        verdicts: list[Verdict] = []
        for verdict in run(clones, mutants, tests_by_line, seconds_by_test, options.budget):
            verdicts.append(verdict)
            if verdict.survived or not verdict.failed:
                word = "SURVIVED" if verdict.survived else "CRASH OR TIME LIMIT"
                print(f"\n{word} ({verdict.tests} tests)\n{verdict.diff}", flush=True)
            if len(verdicts) % 25 == 0:
                survivors = sum(verdict.survived for verdict in verdicts)
                print(f"{len(verdicts)} done, {survivors} survived, {minutes(started)}", flush=True)
            if options.minutes and time.monotonic() - started > 60 * options.minutes:
                break
        os.chdir(clones[0])
        check_failures(verdicts, WarmPytest(Path(folder)).run)
    return report(verdicts, options, commit, minutes(started))


def arguments() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, default=150, help="number of mutants")
    parser.add_argument("--seed", type=int, default=0, help="of the random sample")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tested at a time")
    parser.add_argument("--budget", type=float, default=40, help="seconds of tests per mutant")
    parser.add_argument("--minutes", type=float, help="end after this time")
    parser.add_argument("--goal", type=float, default=6.3, help="percent that may survive")
    parser.add_argument("--only", nargs="*", default=MODULES, help="glob patterns of files")
    parser.add_argument(
        "--tests",
        nargs="*",
        default=["tests"],
        help="files and folders of tests; fewer notice less",
    )
    parser.add_argument("--write", type=Path, help="a page with markers for the table")
    return parser.parse_args()


def minutes(started: float) -> str:
    """Return the time since `started`, a value of time.monotonic(), as text."""
    return f"{(time.monotonic() - started) / 60:.1f} min"


def clone(folder: Path) -> Path:
    """Clone the repository's last commit into `folder` and return it."""
    subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(folder)], check=True)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Return the environment in which a clone's own packages are imported, with one thread per process."""
    return os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}


def measured(
    folder: Path, jobs: int, paths: Sequence[str]
) -> tuple[dict[str, dict[int, set[str]]], dict[str, float]]:
    """Return what `measure` does; a second run of these tests on the same commit reads it from build/."""
    of_paths = hashlib.sha256("\n".join(sorted(paths)).encode()).hexdigest()[:8]
    kept = ROOT / "build" / f"mutants-{last_commit()}-{of_paths}.json"
    if kept.exists():
        lists, seconds = json.loads(kept.read_text())
    else:
        tests_by_line, seconds = measure(folder, jobs, paths)
        lists = {
            file: {line: sorted(tests) for line, tests in lines.items()}
            for file, lines in tests_by_line.items()
        }
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps([lists, seconds]))
    sets = {
        file: {int(line): set(tests) for line, tests in lines.items()}
        for file, lines in lists.items()
    }
    return sets, defaultdict(float, seconds)


def last_commit() -> str:
    """Return the short hash of the commit that is checked out."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def measure(
    folder: Path, jobs: int, paths: Sequence[str]
) -> tuple[dict[str, dict[int, set[str]]], dict[str, float]]:
    """Run the fast tests in these files and folders once under coverage.py.

    A test that fails without any mutant is named and left out: every mutant would count as noticed by it.

    Returns:
        The tests that execute each line, by file and line number, and the seconds of each test.

    Raises:
        SystemExit: pytest cannot run the tests.
    """
    data_file, times_file = folder / ".coverage", folder / "times.xml"
    sources = [f"--cov={package}" for package in ("client_app", "strategies", "data", "server_app")]
    sources += ["--cov=site_agent", "--cov=fedskew"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(jobs)]
    command += [*sources, "--cov-context=test", "--cov-report=", f"--junitxml={times_file}"]
    command += ["-o", "junit_family=xunit1", "--timeout=900", *paths]
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True
    )
    if done.returncode not in (PASSED, FAILED):
        sys.exit(f"pytest cannot run the tests:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")

    import coverage

    recorded = coverage.CoverageData(basename=str(data_file))
    recorded.read()
    tests_by_line: dict[str, dict[int, set[str]]] = {}
    for file in recorded.measured_files():
        lines: dict[int, set[str]] = defaultdict(set)
        for line, contexts in recorded.contexts_by_lineno(file).items():
            # A context is "tests/test_x.py::test_y|run"; the empty one is what imports execute.
            lines[line] |= {context.rpartition("|")[0] for context in contexts if "|" in context}
        tests_by_line[Path(file).relative_to(folder).as_posix()] = lines

    seconds_by_test: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(times_file).iter("testcase"):
        if file := case.get("file"):
            seconds_by_test[f"{file}::{case.get('name')}"] += float(case.get("time", 0))
    failed = set(failed_tests(done.stdout, seconds_by_test))
    if failed:
        print("left out, as they fail without any mutant:", *sorted(failed), sep="\n  ", flush=True)
    return without(failed, tests_by_line), seconds_by_test


def without(
    failed: set[str], tests_by_line: dict[str, dict[int, set[str]]]
) -> dict[str, dict[int, set[str]]]:
    """Return the tests that execute each line, but for those that fail."""
    return {
        file: {line: tests - failed for line, tests in lines.items()}
        for file, lines in tests_by_line.items()
    }


def pytest_words(tests: Iterable[str], folder: Path) -> list[str]:
    """Return the command that runs these tests in one process, without the name of the program.

    Their names go through a file of `folder`, as there are more of them than a command line holds.
    """
    names = folder / "selected-tests.txt"
    names.write_text("\n".join(tests))
    return ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"@{names}"]


def check_found(folder: Path, tests_by_line: dict[str, dict[int, set[str]]]) -> None:
    """Check that pytest finds every measured test by its name alone.

    With one name that it does not find, or one conftest.py that it cannot load, pytest runs nothing and fails. Every
    mutant that this name is selected for would then count as noticed.

    Raises:
        SystemExit: pytest cannot collect the tests.
    """
    tests = {test for lines in tests_by_line.values() for found in lines.values() for test in found}
    command = [sys.executable, *pytest_words(sorted(tests), folder), "--collect-only"]
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(
            f"pytest cannot select the tests by name:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )


def check_failures(
    verdicts: Sequence[Verdict], run_tests: Callable[[Sequence[str]], tuple[int | None, str]]
) -> None:
    """Check that the tests that noticed a mutant pass on the unchanged code.

    Args:
        verdicts: what became of the mutants.
        run_tests: runs tests by their names and returns pytest's exit status and output.

    Raises:
        SystemExit: some test fails, so that the verdicts that rest on it show nothing.
    """
    tests = sorted({test for verdict in verdicts for test in verdict.failed})
    if not tests:
        return
    status, output = run_tests(tests)
    if status != PASSED:
        failed = "\n".join(failed_tests(output, tests)) or output[-2000:]
        sys.exit(f"tests that noticed mutants fail without one:\n{failed}")


def failed_tests(output: str, tests: Iterable[str]) -> tuple[str, ...]:
    """Return which tests failed, and which files could not be loaded, from the summary that ends pytest's output.

    The message of a failed test that itself runs pytest can name tests of that inner run; these do not count.
    """
    known = set(tests)
    known |= {test.partition("::")[0] for test in known}
    failed = []
    # A failed test that itself runs pytest shows the inner run's summary before the outer one.
    summary = output.rpartition("short test summary info")[2]
    for line in summary.splitlines():
        word, _, rest = line.partition(" ")
        if word not in ("FAILED", "ERROR"):
            continue
        # A test's name may itself contain the " - " that separates it from the message.
        parts = rest.split(" - ")
        names = [" - ".join(parts[:end]) for end in range(1, len(parts) + 1)]
        failed += [name for name in names if name in known][:1]
    return tuple(failed)


def sample(
    folder: Path, number: int, draws: random.Random, patterns: Sequence[str]
) -> list[Mutant]:
    """Draw `number` places uniformly without replacement, and at each place one of its mutants.

    Drawing places first keeps one `a + b`, which has eleven mutants, from counting eleven times.
    """
    by_place: dict[Position, list[Mutant]] = defaultdict(list)
    for pattern in patterns:
        for file in sorted(folder.glob(pattern)):
            for mutant in mutants_of(folder, file):
                by_place[mutant.path, mutant.start, mutant.end].append(mutant)
    places = sorted(by_place)
    chosen = draws.sample(places, min(number, len(places)))
    return [draws.choice(by_place[place]) for place in chosen]


def mutants_of(folder: Path, file: Path) -> Iterator[Mutant]:
    """Yield every mutant of a file, except those in spans_without_effect."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator, operator_names

    nodes = list(ast_nodes(get_ast_from_path(file)))
    code = file.read_text()
    left_out = spans_without_effect(ast.parse(code))
    for name in sorted(operator_names()):
        if name.endswith(LEFT_OUT):
            continue
        operator = get_operator(name)()
        occurrence = 0
        for node in nodes:
            for start, end in operator.mutation_positions(node):
                inside = any(first <= start and end <= last for first, last in left_out)
                # Cosmic Ray replaces the exception of a handler only where it is a plain name, not `module.Error`.
                dotted = name.endswith("ExceptionReplacer") and "." in text_between(
                    code, start, end
                )
                if not inside and not dotted:
                    yield Mutant(file.relative_to(folder).as_posix(), name, occurrence, start, end)
                occurrence += 1


def text_between(code: str, start: tuple[int, int], end: tuple[int, int]) -> str:
    """Return the code between two positions of one line."""
    return code.splitlines()[start[0] - 1][start[1] : end[1]]


def spans_without_effect(tree: ast.Module) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the start and end of what changes no result, by the kind of its node.

    These are type annotations, protocols and conditions that only a type checker meets, values of arguments in GUARDS,
    and `@abstractmethod`, which stops a mistake of later code.
    """
    nodes: list[ast.expr | ast.stmt] = []
    decorators: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes.append(node.test)
        if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases):
            nodes.append(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators += [
                name for name in node.decorator_list if ast.unparse(name) == "abstractmethod"
            ]
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            nodes.append(node.annotation)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns:
            nodes.append(node.returns)
        if isinstance(node, ast.keyword) and node.arg in GUARDS:
            nodes.append(node.value)
    spans = [
        ((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0))
        for node in nodes
    ]
    # Cosmic Ray's place of a decorator begins at the @ and ends with the line.
    spans += [((node.lineno, node.col_offset - 1), (node.lineno + 1, 0)) for node in decorators]
    return spans


def run(
    clones: Sequence[Path],
    mutants: Iterable[Mutant],
    tests_by_line: dict[str, dict[int, set[str]]],
    seconds_by_test: dict[str, float],
    budget: float,
) -> Iterator[Verdict]:
    """Yield the verdict on each mutant; each process has one clone to itself."""
    folders: Queue[Path] = Queue()
    for folder in clones:
        folders.put(folder)
    select = partial(selected, tests_by_line, seconds_by_test, budget)
    pool = ProcessPoolExecutor(len(clones), initializer=enter, initargs=(folders,))
    try:
        jobs = [pool.submit(judged, mutant, select(mutant)) for mutant in mutants]
        for job in jobs:
            yield job.result()
    finally:
        pool.shutdown(cancel_futures=True)


class WarmPytest:
    """A process with torch in it that runs pytest in the working folder: see scripts/warm_pytest.py."""

    def __init__(self, folder: Path) -> None:
        """Start it. `folder` is for its files: those of a run are deleted before the next."""
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "scripts" / "warm_pytest.py"), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # A test that starts Python would leave the compiled mutant behind.
            env=environment(Path.cwd()) | {"PYTHONDONTWRITEBYTECODE": "1"},
        )

    def run(self, tests: Sequence[str], limit_s: float = 3600) -> tuple[int | None, str]:
        """Run these tests up to the first that fails.

        Returns:
            pytest's exit status, or None where the time limit ended it, and its output.

        Raises:
            RuntimeError: the process has ended, or pytest found no test.
        """
        names = self._folder / "selected-tests.txt"
        names.write_text("\n".join(tests))
        arguments = ["-q", "-x", "-p", "no:cacheprovider", f"@{names}"]
        assert self._process.stdin and self._process.stdout
        print(
            json.dumps({"arguments": arguments, "limit_s": limit_s}),
            file=self._process.stdin,
            flush=True,
        )
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("scripts/warm_pytest.py has ended")
        status, output = json.loads(answer).values()
        if status == NONE_FOUND:
            raise RuntimeError(f"pytest found none of {len(tests)} tests: {output[-1000:]}")
        return status, output


def enter(folders: "Queue[Path]") -> None:
    """Make one of the clones this process's working folder and start its WarmPytest."""
    global warm
    try:
        folder = folders.get(timeout=60)
    except Empty:
        raise RuntimeError(f"{current_process().name} found no free clone") from None
    os.chdir(folder)
    os.environ.update(environment(folder))
    files = folder.with_name(f"{folder.name}-files")
    files.mkdir()
    warm = WarmPytest(files)


def selected(
    tests_by_line: dict[str, dict[int, set[str]]],
    seconds_by_test: dict[str, float],
    budget: float,
    mutant: Mutant,
) -> tuple[list[str], float]:
    """Return the tests for a mutant and the seconds that they take without it.

    These are the tests that execute a changed line. A line outside functions is executed by whichever test imports the
    file first: for it they are those that execute anything of the file, and those of the pages that list its values.
    Tests named after the file come first, then quick ones, until `budget` seconds are full.
    """
    lines = tests_by_line.get(mutant.path, {})
    span = range(mutant.start[0], mutant.end[0] + 1)
    tests = set().union(*(lines.get(line, set()) for line in span))
    if not tests or not inside_function(ROOT / mutant.path, mutant.start[0]):
        of_pages = {test for test in seconds_by_test if test.startswith(LISTS_OF_VALUES)}
        tests = of_pages.union(*lines.values())
    stem = Path(mutant.path).stem

    def by_nearness(test: str) -> tuple[bool, float, str]:
        return stem not in test.partition("::")[0], seconds_by_test[test], test

    chosen: list[str] = []
    total = 0.0
    for test in sorted(tests, key=by_nearness):
        if total + seconds_by_test[test] <= budget:
            chosen.append(test)
            total += seconds_by_test[test]
    return chosen, total


def inside_function(file: Path, line: int) -> bool:
    """Return whether a line of a file stands in the body of a function."""
    nodes = ast.walk(ast.parse(file.read_text()))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return any(node.body[0].lineno <= line <= (node.end_lineno or 0) for node in functions)


def judged(mutant: Mutant, tests_and_seconds: tuple[list[str], float]) -> Verdict:
    """Apply a mutant in this process's clone, run the tests and take the mutant back."""
    from cosmic_ray.mutating import use_mutation
    from cosmic_ray.plugins import get_operator

    tests, seconds = tests_and_seconds
    operator = get_operator(mutant.operator)()
    diffs = []

    def run_mutated(limit_s: float) -> tuple[int | None, str]:
        with use_mutation(Path(mutant.path), operator, mutant.occurrence) as (before, after):
            if after is None:
                raise RuntimeError(f"Cosmic Ray cannot make {mutant}")
            diffs.append(diff_of(mutant.path, before, after))
            return run_near_first(tests, limit_s, warm.run)

    def run_unchanged() -> tuple[int | None, str]:
        return run_near_first(tests, 3600, warm.run)

    status, output = outcome(run_mutated, run_unchanged, START_UP_S + SLOWER * seconds)
    return Verdict(mutant, status == PASSED, len(tests), diffs[0], failed_tests(output, tests))


def outcome(
    run_mutated: Callable[[float], tuple[int | None, str]],
    run_unchanged: Callable[[], tuple[int | None, str]],
    limit_s: float,
) -> tuple[int | None, str]:
    """Return pytest's exit status, or None for a time limit, and its output with a mutant.

    Where no test fails but pytest itself crashes or runs into the limit, the tests run without the mutant too. If they
    are slow there as well, the machine is busy: the mutant gets another try with SLOWER times what they took.

    Raises:
        RuntimeError: the tests do not pass without the mutant, so that they show nothing.
    """
    status, output = run_mutated(limit_s)
    if status in (PASSED, FAILED):
        return status, output
    started = time.monotonic()
    status_unchanged, output_unchanged = run_unchanged()
    took_s = time.monotonic() - started
    if status_unchanged != PASSED:
        raise RuntimeError(
            f"tests end with {status_unchanged} unchanged: {output_unchanged[-2000:]}"
        )
    if status is None and SLOWER * took_s > limit_s:
        return run_mutated(SLOWER * took_s)
    return status, output


def run_near_first(
    tests: Sequence[str],
    limit_s: float,
    run_tests: Callable[[Sequence[str], float], tuple[int | None, str]],
) -> tuple[int | None, str]:
    """Run the tests of the first NEAR_FILES files, and the others if all of these pass.

    Without any test the result is that all pass, so that the mutant survives.
    """
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    near = set(list(files)[:NEAR_FILES])
    status: int | None = PASSED
    output = ""
    for is_near in (True, False):
        part = [test for test in tests if (test.partition("::")[0] in near) == is_near]
        if part and status == PASSED:
            status, output = run_tests(part, limit_s)
    return status, output


def diff_of(path: str, before: str, after: str) -> str:
    """Return the change of a file as a diff."""
    lines = difflib.unified_diff(
        before.split("\n"), after.split("\n"), f"a/{path}", f"b/{path}", lineterm=""
    )
    return "\n".join(lines)


def changed_lines(diff: str) -> tuple[list[str], list[str]]:
    """Return the lines that a diff removes and those that it adds, without indentation."""
    body = [line for line in diff.splitlines() if not line.startswith(("---", "+++"))]
    removed = [line[1:].strip() for line in body if line.startswith("-")]
    added = [line[1:].strip() for line in body if line.startswith("+")]
    return removed, added


def equivalent(verdict: Verdict) -> bool:
    """Return whether a mutant is the same program, such as 1e30 and 1e+30, or stands in the list of equivalent ones."""
    listed = tomllib.loads(EQUIVALENT.read_text()).get("mutant", [])
    removed, added = changed_lines(verdict.diff)
    return same_program(removed, added) or any(
        entry["file"] == verdict.mutant.path
        and entry["from"] == "\n".join(removed)
        and entry["to"] == "\n".join(added)
        for entry in listed
    )


def same_program(removed: Sequence[str], added: Sequence[str]) -> bool:
    """Return whether two pieces of code are parsed to the same tree; pieces that are no whole statements are not."""
    try:
        before, after = (ast.dump(ast.parse("\n".join(lines))) for lines in (removed, added))
    except SyntaxError:
        return False
    return before == after


def report(verdicts: Sequence[Verdict], options: argparse.Namespace, commit: str, took: str) -> int:
    """Print the totals, write the table where the options ask for it, and return the exit status."""
    same = [verdict for verdict in verdicts if verdict.survived and equivalent(verdict)]
    survivors = [verdict for verdict in verdicts if verdict.survived and verdict not in same]
    counted = len(verdicts) - len(same)
    by_end = sum(not verdict.survived and not verdict.failed for verdict in verdicts)
    by_test = counted - len(survivors) - by_end
    percent = 100 * len(survivors) / max(1, counted)
    lines = [
        f"`python scripts/mutants.py --sample {options.sample} --seed {options.seed}` on {commit},"
        f" {time.strftime('%Y-%m-%d')}, {took}:",
        "",
        "| mutants | equivalent | noticed by a test | by a crash or the time limit | survived | percent |",
        "|---|---|---|---|---|---|",
        f"| {len(verdicts)} | {len(same)} | {by_test} | {by_end} | {len(survivors)} | {percent:.1f} |",
    ]
    print("\n".join(lines))
    print(
        json.dumps(
            [f"{v.mutant.path}:{v.mutant.start[0]} {v.mutant.operator}" for v in survivors],
            indent=1,
        )
    )
    if options.write:
        text = options.write.read_text()
        before, _, rest = text.partition(BEGIN)
        table = "\n".join(lines)
        options.write.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}")
    return int(percent > options.goal)


if __name__ == "__main__":
    sys.exit(main())
