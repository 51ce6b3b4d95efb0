"""The command `fedskew`, which a signal may end at any moment: its handlers stand before anything heavy is imported."""

import contextlib
import signal
import sys

from fedskew.signals import INTERRUPTED, abandon, end_children, finish, heed, leave, one_interrupt


def main() -> None:
    """Run the command line; the exit status is 0 only for complete success, and 130 after a signal."""
    heed(leave)
    from fedskew.cli.application import prepare, run_command_line

    prepare(sys.argv[1:])  # may load torch, which takes seconds
    status = INTERRUPTED
    with contextlib.suppress(KeyboardInterrupt), one_interrupt(abandon) as arrived:
        status = run_command_line()
    if status == INTERRUPTED or arrived.is_set():
        heed(signal.SIG_IGN)
        end_children()
        finish()
    sys.exit(status)
