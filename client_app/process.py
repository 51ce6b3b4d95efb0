"""Set-up of a process that runs clients: its device, its threads, and the hash of its code."""

import ctypes
import functools
import hashlib
import os
import sys

import torch

from data import SettingError
from data.packages import sources

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Options of glibc's mallopt: free bytes at the heap's end that are kept, and the size from which a block is mapped."""
TRIM_BYTES = 2**28
"""Free bytes at the heap's end that a process keeps."""
MMAP_BYTES = 2**25
"""Size from which a block is mapped on its own and returned at once: the largest that older versions of glibc take."""
CUBLAS_WORKSPACE = ":4096:8"
"""cuBLAS repeats its results only with a workspace of fixed size: eight buffers of 4,096 KiB."""


@functools.cache
def code_version(*packages: str) -> str:
    """Return a hash of the packages' canonical sources; of those that a client runs, when none is named.

    A clone and a wheel of one release have one hash.
    """
    chosen = packages or ("client_app", "data")
    sha = hashlib.sha256()
    for path, source in sources(*chosen).items():
        sha.update(f"{path}\n".encode() + source)
    return sha.hexdigest()[:16]


def choose_device(wanted: str) -> str:
    """Return cpu or cuda. Raises SettingError when cuda is demanded and this process sees none."""
    seen = torch.cuda.is_available()
    if wanted == "cuda" and not seen:
        remedy = "use device = cpu, a machine with one, or on Ray --client-gpus 0.5"
        raise SettingError("device", wanted, "this client sees no GPU", remedy=remedy)
    return "cuda" if seen and wanted != "cpu" else "cpu"


def make_deterministic(threads: int = 1) -> None:
    """Make this process compute bit-identical results: `threads` threads, and deterministic cuDNN algorithms.

    One thread also keeps clients on one machine from competing for its cores. A site with its own cores may use more;
    its results then repeat to the bit with that number of threads only.

    On a GPU torch takes its deterministic algorithms, and warns of an operation that has none. float32 is float32
    there, as on a CPU: cuDNN otherwise rounds a convolution's inputs to the 10 bits of TF32.
    """
    torch.set_num_threads(threads)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False
    if torch.cuda.is_available():
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)
        torch.use_deterministic_algorithms(True, warn_only=True)
        # A check for bugs that costs time. The module's class has it, where mypy does not look.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@functools.cache
def tune_allocator() -> None:
    """Make glibc's allocator keep the memory of freed tensors for the next ones; elsewhere do nothing.

    By default it returns a large tensor's memory to the system at once, and the next tensor faults its pages in one by
    one. In a training step of McMahan's CNN that takes a quarter of the time.
    """
    tune = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if tune is not None:
        tune(M_MMAP_THRESHOLD, MMAP_BYTES)
        tune(M_TRIM_THRESHOLD, TRIM_BYTES)
