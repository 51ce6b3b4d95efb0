"""Break the code in one place at a time and see whether a fast test notices.

    make mutants
    python scripts/mutants.py [--sample 150] [--seed 0] [--jobs 2] [--budget 40] [--write FILE]

Cosmic Ray finds the places and makes each change (a mutant). For each mutant this script runs the fast tests that
execute the changed lines, as measured once with coverage.py, and stops at the first that fails. A mutant that no test
notices survives. Survivors are printed as diffs. A survivor that cannot change any behavior is listed, with the reason,
in scripts/equivalent_mutants.toml and does not count.

The script works on clones of the last commit, so it never changes your working tree. The exit status is 1 if more than
`--goal` percent of the mutants that can change something survive. Run it on a quiet machine: the table counts apart
what crashes pytest or exceeds its time.
"""

import argparse
import ast
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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from queue import Queue

# cosmic_ray and coverage are imported where they are used: they are an optional extra, and tests/test_mutants.py runs
# without them.

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = ROOT / "scripts" / "equivalent_mutants.toml"
PACKAGES = ("client_app", "strategies", "data", "server_app", "site_agent", "fedskew")
MODULES = (
    "client_app/**/*.py",
    "strategies/**/*.py",
    "data/partitions.py",
    "data/subsets.py",
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
LEFT_OUT = ("VariableInserter", "VariableReplacer", "Is_Eq", "IsNot_NotEq", "Eq_Is", "NotEq_IsNot")
"""Ends of operator names that are not used: most of their mutants are the same program."""
GUARDS = ("strict", "frozen")
"""Arguments of zip and dataclass that stop mistakes of later code; no correct call reaches them."""
LISTS_OF_VALUES = ("tests/test_reference_pages.py", "tests/test_golden_parts.py")
"""The tests of lists: of the defaults of all settings, and of what every part of a method declares."""
BEGIN, END = "<!-- make mutants -->", "<!-- end of make mutants -->"
START_UP_S = 30
"""Seconds that a test process gets beyond its tests' own time."""
SLOWER = 4
"""So many times its own time may a test take beside a mutant."""
PASSED, FAILED = 0, 1
"""Exit statuses of pytest. It has others where it crashes or cannot load a file."""

Span = tuple[tuple[int, int], tuple[int, int]]
"""Start and end of a node: lines from 1, columns from 0."""


@dataclass(frozen=True)
class Mutant:
    """One change of the code. `path` is relative to the repository."""

    path: str
    operator: str
    occurrence: int
    span: Span


@dataclass
class Coverage:
    """What the fast tests execute, without those that fail on the unchanged code."""

    tests: dict[str, dict[int, set[str]]] = field(default_factory=dict)
    """The tests that execute each line, by file and line number."""
    seconds: dict[str, float] = field(default_factory=dict)
    """That each test takes."""

    def selected(self, mutant: Mutant, budget: float) -> list[str]:
        """Return the tests for a mutant.

        These are the tests that execute a changed line. A line outside functions is executed by whichever test imports
        the file first: for it they are those that execute anything of the file, and those of the lists of its values,
        which come first. Tests named after the file come next, then those that import it, then quick ones, until
        `budget` seconds are full.
        """
        lines = self.tests.get(mutant.path, {})
        (first, _), (last, _) = mutant.span
        tests = set().union(*(lines.get(line, set()) for line in range(first, last + 1)))
        of_lists: set[str] = set()
        if not tests or not inside_function(ROOT / mutant.path, first):
            of_lists = {test for test in self.seconds if test.startswith(LISTS_OF_VALUES)}
            tests = of_lists.union(*lines.values())
        stem = Path(mutant.path).stem
        module = mutant.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

        def by_nearness(test: str) -> tuple[bool, bool, bool, float, str]:
            file = test.partition("::")[0]
            imports = f"from {module} import" in text_of(file)
            return test not in of_lists, stem not in file, not imports, self.seconds[test], test

        chosen: list[str] = []
        for test in sorted(tests & self.seconds.keys(), key=by_nearness):
            budget -= self.seconds[test]
            if budget < 0:
                break
            chosen.append(test)
        return chosen


def main() -> int:
    """Measure coverage, sample mutants, test them and print the survivors. Returns the exit status."""
    options = arguments()
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(
        git, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fedskew-mutants-") as temporary:
        clones: Queue[WarmPytest] = Queue()
        folders = [clone(Path(temporary) / f"clone-{job}") for job in range(options.jobs)]
        coverage = measure(folders[0], options.jobs)
        mutants = sample(folders[0], options.sample, random.Random(options.seed))
        for folder in folders:
            clones.put(WarmPytest(folder))
        minutes = (time.monotonic() - began) / 60
        print(f"{len(mutants)} mutants, after {minutes:.1f} min", flush=True)

        def judged(mutant: Mutant) -> tuple[str, str]:
            tests = coverage.selected(mutant, options.budget)
            limit_s = START_UP_S + SLOWER * sum(coverage.seconds[test] for test in tests)
            warm = clones.get()
            try:
                return warm.run(mutant, tests, limit_s)
            finally:
                clones.put(warm)

        ends: dict[str, int] = defaultdict(int)
        with ThreadPoolExecutor(options.jobs) as pool:
            for mutant, (end, diff) in zip(mutants, pool.map(judged, mutants), strict=True):
                if end == "survived" and is_equivalent(mutant.path, diff):
                    end = "equivalent"
                ends[end] += 1
                if end in ("survived", "crash"):
                    print(f"\n{end.upper()} {mutant.path}\n{diff}", flush=True)
    counted = max(1, len(mutants) - ends["equivalent"])
    percent = 100 * ends["survived"] / counted
    took = f"{(time.monotonic() - began) / 60:.1f} min"
    command = f"`python scripts/mutants.py --sample {options.sample} --seed {options.seed}`"
    table = f"""{command} on {commit}, {time.strftime("%Y-%m-%d")}, {took}:

| mutants | equivalent | noticed by a test | by a crash or the time limit | survived | percent |
|---|---|---|---|---|---|
| {len(mutants)} | {ends["equivalent"]} | {ends["noticed"]} | {ends["crash"]} | {ends["survived"]} | {percent:.1f} |
"""
    print(table)
    if options.write:
        before, _, rest = options.write.read_text().partition(BEGIN)
        options.write.write_text(f"{before}{BEGIN}\n{table}{END}{rest.partition(END)[2]}")
    return int(percent > options.goal)


def arguments() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, default=150, help="number of mutants")
    parser.add_argument("--seed", type=int, default=0, help="of the random sample")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tested at a time")
    parser.add_argument("--budget", type=float, default=40, help="seconds of tests per mutant")
    parser.add_argument("--goal", type=float, default=6.3, help="percent that may survive")
    parser.add_argument("--write", type=Path, help="a page with markers for the table")
    return parser.parse_args()


def clone(folder: Path) -> Path:
    """Clone the repository's last commit into `folder` and return it."""
    subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(folder)], check=True)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Return the environment in which a clone's own packages are imported, with one thread per process."""
    return os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}


def measure(folder: Path, jobs: int) -> Coverage:
    """Run the fast tests once under coverage.py. Raises SystemExit where pytest cannot run them."""
    times = folder / "times.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(jobs)]
    command += [*(f"--cov={package}" for package in PACKAGES), "--cov-context=test"]
    command += ["--cov-report=", f"--junitxml={times}", "-o", "junit_family=xunit1", "tests"]
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True
    )
    if done.returncode not in (PASSED, FAILED):
        sys.exit(f"pytest cannot run the tests:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    coverage = Coverage()
    for case in ElementTree.parse(times).iter("testcase"):
        test = f"{case.get('file')}::{case.get('name')}"
        if case.find("failure") is None and case.find("error") is None:
            coverage.seconds[test] = float(case.get("time", 0))
        else:
            print(f"left out, as it fails without any mutant: {test}", flush=True)

    from coverage import CoverageData

    recorded = CoverageData(basename=str(folder / ".coverage"))
    recorded.read()
    for file in recorded.measured_files():
        lines = coverage.tests[Path(file).relative_to(folder).as_posix()] = {}
        for line, contexts in recorded.contexts_by_lineno(file).items():
            # A context is "tests/test_x.py::test_y|run"; the empty one is what imports execute.
            lines[line] = {context.rpartition("|")[0] for context in contexts if "|" in context}
    return coverage


def sample(folder: Path, number: int, draws: random.Random) -> list[Mutant]:
    """Draw `number` places uniformly without replacement, and at each place one of its mutants.

    Drawing places first keeps one `a + b`, which has eleven mutants, from counting eleven times.
    """
    by_place: dict[tuple[str, Span], list[Mutant]] = defaultdict(list)
    for pattern in MODULES:
        for file in sorted(folder.glob(pattern)):
            for mutant in mutants_of(folder, file):
                by_place[mutant.path, mutant.span].append(mutant)
    chosen = draws.sample(sorted(by_place), min(number, len(by_place)))
    return [draws.choice(by_place[place]) for place in chosen]


def mutants_of(folder: Path, file: Path) -> Iterator[Mutant]:
    """Yield every mutant of a file, except those in `spans_without_effect`."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator, operator_names

    nodes = list(ast_nodes(get_ast_from_path(file)))
    lines = file.read_text().splitlines()
    left_out = spans_without_effect(ast.parse(file.read_text()))
    for name in sorted(operator_names()):
        if name.endswith(LEFT_OUT):
            continue
        operator = get_operator(name)()
        occurrence = 0
        for node in nodes:
            for start, end in operator.mutation_positions(node):
                inside = any(first <= start and end <= last for first, last in left_out)
                # Cosmic Ray replaces the exception of a handler only where it is a plain name, not `module.Error`.
                text = lines[start[0] - 1][start[1] : end[1]]
                if not inside and not (name.endswith("ExceptionReplacer") and "." in text):
                    path = file.relative_to(folder).as_posix()
                    yield Mutant(path, name, occurrence, (start, end))
                occurrence += 1


def spans_without_effect(tree: ast.Module) -> list[Span]:
    """Return where a change has no result: annotations, protocols, what type checkers alone read, guards."""
    nodes: list[ast.expr | ast.stmt | None] = []
    decorators: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes.append(node.test)
        elif isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases):
            nodes.append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes.append(node.returns)
            names = [name for name in node.decorator_list if ast.unparse(name) == "abstractmethod"]
            decorators += names
        elif isinstance(node, ast.arg | ast.AnnAssign):
            nodes.append(node.annotation)
        elif isinstance(node, ast.keyword) and node.arg in GUARDS:
            nodes.append(node.value)
    spans = []
    for found in nodes:
        if found is not None:
            end = (found.end_lineno or 0, found.end_col_offset or 0)
            spans.append(((found.lineno, found.col_offset), end))
    # Cosmic Ray's place of a decorator begins at the @ and ends with the line.
    for name in decorators:
        spans.append(((name.lineno, name.col_offset - 1), (name.lineno + 1, 0)))
    return spans


@cache
def text_of(file: str) -> str:
    """Return the text of a file of the repository."""
    return (ROOT / file).read_text()


def inside_function(file: Path, line: int) -> bool:
    """Return whether a line of a file stands in the body of a function."""
    nodes = ast.walk(ast.parse(file.read_text()))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return any(node.body[0].lineno <= line <= (node.end_lineno or 0) for node in functions)


class WarmPytest:
    """A process with torch in it that runs pytest in a clone of the repository: see scripts/warm_pytest.py."""

    def __init__(self, folder: Path) -> None:
        """Start it."""
        self.folder = folder
        self.files = folder.with_name(f"{folder.name}-files")
        self.files.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "scripts" / "warm_pytest.py"), str(self.files)],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # A test that starts Python would leave the compiled mutant behind.
            env=environment(folder) | {"PYTHONDONTWRITEBYTECODE": "1"},
        )

    def run(self, mutant: Mutant, tests: list[str], limit_s: float) -> tuple[str, str]:
        """Run tests beside a mutant up to the first that fails: survived, noticed or crash, and the mutant's diff."""
        from cosmic_ray.mutating import use_mutation
        from cosmic_ray.plugins import get_operator

        names = self.files / "selected-tests.txt"
        names.write_text("\n".join(tests))
        words = ["-q", "-x", "-p", "no:cacheprovider", f"@{names}"]
        operator = get_operator(mutant.operator)()
        assert self.process.stdin and self.process.stdout
        with use_mutation(self.folder / mutant.path, operator, mutant.occurrence):
            changed = ["git", "diff", "--unified=2", mutant.path]
            diff = subprocess.run(changed, cwd=self.folder, capture_output=True, text=True).stdout
            if not tests:
                return "survived", diff
            request = json.dumps({"arguments": words, "limit_s": limit_s})
            print(request, file=self.process.stdin, flush=True)
            status = json.loads(self.process.stdout.readline())["status"]
        return {PASSED: "survived", FAILED: "noticed"}.get(status, "crash"), diff


def is_equivalent(path: str, diff: str) -> bool:
    """Return whether a change is the same program, such as 1e30 and 1e+30, or stands in the list of equivalent ones."""
    lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++"))]
    removed = "\n".join(line[1:].strip() for line in lines if line.startswith("-"))
    added = "\n".join(line[1:].strip() for line in lines if line.startswith("+"))
    try:
        if ast.dump(ast.parse(removed)) == ast.dump(ast.parse(added)):
            return True
    except SyntaxError:  # no whole statement
        pass
    change = {"file": path, "from": removed, "to": added}
    listed = tomllib.loads(EQUIVALENT.read_text()).get("mutant", [])
    # An entry without `to` is of every change of its line.
    return any(
        all(entry.get(key, text) == text for key, text in change.items()) for entry in listed
    )


if __name__ == "__main__":
    sys.exit(main())
