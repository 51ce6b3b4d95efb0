"""Run pytest again and again in forks of one process that has imported torch and flwr already.

    python scripts/warm_pytest.py FOLDER    started by scripts/mutants.py in a clone of the repository

Every line of standard input is a JSON object with `arguments` of pytest and `limit_s`. The answer is one line of
standard output: a JSON object with `status`, which is pytest's exit status or null where the time limit ended the run,
and `output`. A fork imports this project and its tests anew, so that it runs the code that lies in the clone now.
"""

import contextlib
import importlib
import json
import os
import shutil
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import TextIO

PRELOADED = (
    "numpy",
    "torch",
    "torch.func",
    "safetensors.torch",
    "flwr.clientapp",
    "flwr.serverapp",
    "flwr.supercore.constant",
    "cryptography.x509",
    "yaml",
    "tomli_w",
    "typer",
    "pytest",
)
"""What forks need not import again. No module of this project may be among them."""


def main() -> None:
    """Answer each line of standard input until it ends."""
    folder = Path(sys.argv[1])
    sys.dont_write_bytecode = True  # two changes within a second would share one compiled file
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in PRELOADED:
            importlib.import_module(name)
    check_outside(Path.cwd())
    start_no_process_early()
    for line in sys.stdin:
        request = json.loads(line)
        status, output = forked(request["arguments"], request["limit_s"], folder)
        print(json.dumps({"status": status, "output": output}), flush=True)


def check_outside(clone: Path) -> None:
    """Check that no module of the clone is imported: a fork would then never see its mutants.

    Raises:
        SystemExit: some module is.
    """
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    inside = [
        name
        for name, file in files.items()
        if file and name != "__main__" and clone.resolve() in Path(file).parents
    ]
    if inside:
        sys.exit(f"these modules are imported before the fork: {', '.join(inside)}")


def start_no_process_early() -> None:
    """Let multiprocessing start its server when a test needs it: tests/conftest.py starts it for all tests at once."""
    from multiprocessing import forkserver

    forkserver.ensure_running = lambda: None


def forked(arguments: list[str], limit_s: float, folder: Path) -> tuple[int | None, str]:
    """Run pytest in a fork with these arguments.

    Returns:
        Its exit status, or None where it ran for more than `limit_s` seconds, and its output.
    """
    output, temporary = folder / "output.txt", folder / "temporary"
    shutil.rmtree(temporary, ignore_errors=True)
    with output.open("w") as file:
        child = os.fork()
        if not child:
            run_pytest([*arguments, f"--basetemp={temporary}"], file)
        status = ended(child, limit_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what the tests started and left
    return status, output.read_text(errors="replace")


def run_pytest(arguments: list[str], output: TextIO) -> None:
    """Run pytest and end this process without the handlers of the process that it was forked from."""
    status = 70
    try:
        os.setsid()
        sys.stdin = Path(os.devnull).open()  # noqa: SIM115
        os.dup2(sys.stdin.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        sys.stdout = sys.stderr = output
        import pytest

        status = int(pytest.main(arguments))
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def ended(child: int, limit_s: float) -> int | None:
    """Wait for a process and return its exit status, or None where it was ended after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


if __name__ == "__main__":
    main()
