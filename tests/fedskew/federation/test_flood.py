"""benchmarks/flood.py: its table."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def flood(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT / "deploy"))
    return importlib.import_module("benchmarks.flood")


def test_a_ratio_is_that_of_two_blocks_beside_each_other(flood: ModuleType) -> None:
    sent = {"seconds": 2.0, "200": 10, "429": 4, "connections": 3, "body bytes": 2**22}
    pairs = [
        (flood.Block([1.0, 2.0, 3.0]), flood.Block([2.0, 3.0, 4.0], sent)),
        (flood.Block([4.0]), flood.Block([4.0], sent)),
        (flood.Block([1.0]), flood.Block([3.0], sent)),
    ]
    row = flood.result("requests", pairs)
    assert (row["ratio"], row["least"], row["most"], row["measurements"]) == (1.5, 1.0, 3.0, 3)
    assert (row["undisturbed"], row["beside"]) == (2.0, 3.0)
    words = "5.0 answers of 200, 2.0 answers of 429, 1.5 connections, 2 MiB"
    assert flood.got_through(row["sent"]) == words
    assert flood.table([row], flood.WAYS)[-1] == (
        "| as many signed requests as it can, 64 at a time | 2.00 s | 3.00 s | 1.50 "
        f"| 1.00 to 3.00 of 3 | 1.5 | {words} |"
    )
