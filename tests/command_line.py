"""The command line in this process."""

import signal
import sys
from collections.abc import Callable

import pytest

FedSkew = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fedskew(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> FedSkew:
    """Return a function that runs `fedskew WORDS` and returns exit status, stdout and stderr."""
    from fedskew.cli.main import main  # not before conftest.py has imported flwr
    from fedskew.signals import SIGNALS

    before = {number: signal.getsignal(number) for number in SIGNALS}
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedskew", *map(str, words)])
        status = 0
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
        finally:
            for (
                number,
                handler,
            ) in before.items():  # the command keeps its own until its process ends
                signal.signal(number, handler)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run
