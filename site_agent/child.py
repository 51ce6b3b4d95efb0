"""A child process that does not outlive its parent, however that ends (Linux)."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def end_with(parent: int, number: signal.Signals) -> None:
    """Let this process get a signal when its parent ends; it goes at once if the parent has ended already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":  # python -m site_agent.child PARENT COMMAND...
    end_with(int(sys.argv[1]), signal.SIGTERM)
    os.execvp(sys.argv[2], sys.argv[2:])
