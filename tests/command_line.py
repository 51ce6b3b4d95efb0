"""The command line in this process."""

import sys
from collections.abc import Callable

import pytest

FedSkew = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fedskew(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> FedSkew:
    """Return a function that runs `fedskew WORDS` and returns exit status, stdout and stderr."""
    from fedskew.cli.main import main  # not before conftest.py has imported flwr

    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedskew", *map(str, words)])
        status = 0
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
        told = capsys.readouterr()
        return status, told.out, told.err

    return run
