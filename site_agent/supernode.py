"""The process of flwr's SuperNode: it ends with its parent, and when its connection to the coordinator ends.

flwr 1.42 gives up a connection on an error that it does not retry, such as a TLS handshake that times out because the
gateway is halted. Its main thread then returns, but the thread of its HTTP server keeps the process alive. The process
looks healthy and never asks for a message again. Here it exits instead, and supernode_watch.py starts the next one.
"""

import ctypes
import os
import signal
import sys
import traceback

PROGRAM = "flower-supernode"
"""Stands before the arguments, so that a list of processes shows what this one is."""
CHILD = "--child-of"
"""Stands before the parent's process id and the command of a process that must not outlive its parent."""
GAVE_UP = 1
"""Exit status where flwr's SuperNode has returned."""
PR_SET_PDEATHSIG = 1
"""Of Linux' prctl: the signal that the kernel sends this process when its parent ends."""


def end_with_parent(parent: int, number: signal.Signals) -> None:
    """Have the kernel send this process the signal `number` when its parent ends, however that happens (Linux)."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before the call, so no signal will come
        os._exit(1)


def child_command(command: list[str]) -> list[str]:
    """Return the command that runs `command` as a process that gets SIGTERM when this process ends."""
    return [sys.executable, "-m", f"{__package__}.supernode", CHILD, str(os.getpid()), *command]


def main() -> None:
    """Run `flower-supernode` with this process's arguments, `flower-supernode ...`, and end when it returns."""
    from site_agent.flower_internals import run_supernode

    sys.argv = sys.argv[1:]
    try:
        run_supernode()
    except SystemExit:  # flwr ends itself, and has stopped its server
        raise
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(GAVE_UP)


# python -m site_agent.supernode flower-supernode ARGUMENTS...
# python -m site_agent.supernode --child-of PID COMMAND...
if __name__ == "__main__":
    if sys.argv[1] == CHILD:
        end_with_parent(int(sys.argv[2]), signal.SIGTERM)  # it holds across execvp
        os.execvp(sys.argv[3], sys.argv[3:])
    main()
