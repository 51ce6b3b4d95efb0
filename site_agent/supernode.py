"""flwr's SuperNode as a process that ends when its connection to the coordinator does.

flwr 1.41 gives a connection up on an error that it does not retry, such as a TLS handshake that times out because the
gateway is halted. Its main thread then returns, while the thread of its HTTP server keeps the process: it looks alive
and never asks for a message again. Here the process ends instead, and whoever keeps it (link.py) starts the next.
"""

import os
import sys
import traceback

PROGRAM = "flower-supernode"
"""Stands before the arguments, so that a list of processes shows what this one is."""
GAVE_UP = 1
"""Exit status where flwr's SuperNode has returned."""


def main() -> None:
    """Run `flower-supernode` with this process's arguments, `flower-supernode ...`, and end when it returns."""
    from flwr.supernode.cli import flower_supernode

    sys.argv = sys.argv[1:]
    try:
        flower_supernode()
    except SystemExit:  # flwr ends itself, and has stopped its server
        raise
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(GAVE_UP)


if __name__ == "__main__":  # python -m site_agent.supernode flower-supernode ARGUMENTS...
    main()
