"""What holds for a process that runs clients."""

import ctypes
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from client_app.process import code_version

PAGE_FAULTS = """
import resource, torch
from client_app.process import tune_allocator
tune_allocator()
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(2 * 2**20) for _ in range(15)]
    del tensors
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")
def test_the_memory_of_tensors_that_are_gone_is_there_for_the_next() -> None:
    done = subprocess.run([sys.executable, "-c", PAGE_FAULTS], capture_output=True, check=True)
    pages = 15 * 2**23 / resource.getpagesize()
    assert int(done.stdout) < pages / 10  # left to itself, glibc mostly gives them all back


def test_sources_are_read_once_as_a_process_runs_what_it_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file that is edited during a run must not become the version of what the process has long imported."""
    first = code_version("data")
    monkeypatch.setattr(Path, "read_bytes", lambda path: b"edited")
    assert code_version("data") == first
    assert code_version("data", "strategies") != first
