"""Marked processes are found, and ended whatever they do."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from fedskew.engines.processes import alive, end, mark, marked

FORKING = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: None if os.fork() else signal.signal(signal.SIGTERM, signal.SIG_IGN))
print('up', flush=True)
end = time.monotonic() + 60
while time.monotonic() < end: time.sleep(0.01)
"""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path):
    """Start Python code with the run folder's mark, and wait until it (or its child) prints a line."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, **environment: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-S", "-c", code]
        process = subprocess.Popen(
            words, env=os.environ | mark(tmp_path) | environment, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process

    yield start
    end(tmp_path, 0)
    for process in started:
        process.kill()
        process.communicate()


def test_end_leaves_none_however_it_clings(start, tmp_path):
    """SIGTERM has it fork, the second one nothing."""
    start(FORKING)
    assert marked(tmp_path)
    below = {child for process in marked(tmp_path) for child in process.children(recursive=True)}
    end(tmp_path, 0.2)
    assert not marked(tmp_path)
    assert not any(alive(process) for process in below)
