"""docs/explanation/invariants.md names tests that exist, and leaves no number out."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROWS = [
    line.split("|")[1:4]
    for line in (TESTS.parent / "docs/explanation/invariants.md").read_text().splitlines()
    if "|" in line
]


def test_every_test_named_exists() -> None:
    named = [
        re.fullmatch(r"(.+)::(test_\w+)", name)
        for *_, tests in ROWS
        for name in re.findall(r"`([^`]+)`", tests)
    ]
    assert len(named) > 100
    for match in named:
        assert match and f"def {match[2]}(" in (TESTS / match[1]).read_text(), match


def test_the_numbers_run_on() -> None:
    numbers = [int(number) for first, *_ in ROWS for number in re.findall(r"\d+", first)]
    assert numbers == list(range(1, 78))
