"""The command `fedskew`. It sets its signal handlers before it imports anything heavy."""

import contextlib
import signal
import sys

from fedskew.signals import (
    INTERRUPTED,
    abandon,
    end_children,
    exit_now,
    finish,
    one_interrupt,
    set_handlers,
)


def main() -> None:
    """Run the command line; the exit status is 0 only for complete success, and 130 after a signal."""
    set_handlers(exit_now)
    from fedskew.cli.application import COMMANDS, prepare, run_command_line
    from fedskew.formatting import status_line

    words = sys.argv[1:]
    # The commands of `federation` wait for others.
    if words and words[0] in COMMANDS and words[0] != "federation":
        status_line.begin("loading PyTorch and planning ...")
    prepare(words)  # may load torch, which takes seconds
    status = INTERRUPTED
    with contextlib.suppress(KeyboardInterrupt), one_interrupt(abandon) as arrived:
        status = run_command_line()
    status_line.end()
    if status == INTERRUPTED or arrived.is_set():
        set_handlers(signal.SIG_IGN)
        end_children()
        finish()
    sys.exit(status)
