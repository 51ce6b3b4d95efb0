"""Run a Flower app by `flwr run` on a SuperLink of its own, and report reliably whether it completed.

flwr's own way has four traps, each avoided here: `flwr run --stream` exits 0 though the ServerApp raised; its daemon, a
SuperLink, stays for ever, with the environment and working directory of the first run; clients import from that working
directory; and after the last round five seconds pass in shutting down. Here a result file is the one proof of success.
"""

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import tomli_w

from data.text import spoken
from fedskew.engines.flower import Flower, LaunchFailed
from fedskew.engines.processes import (
    PATIENCE,
    PREFIX,
    alive,
    claim,
    clear_leftovers,
    note_owner,
    short_folder,
)
from fedskew.engines.stub_app import write_stub_app
from fedskew.signals import one_interrupt

LONGEST = 14
"""Characters in the name of the temporary folder's parent, up to which Ray's long paths below it can name sockets."""
HASTE = 0.1
"""Seconds that processes have to end once the result is there: none of them holds anything that is still wanted."""
LOG_LAG = 0.6
"""Seconds by which flwr's log stream is behind."""
FAREWELL = 4.0
"""Seconds the log stream has to end after the simulation process ended; after kill -9 flwr itself takes 42 s."""
STATUS_INTERVAL = 30.0
"""Seconds between two questions for the run's status, in case the stream hangs; one costs a second of CPU time."""


def launch(
    app: Path,
    run_config: Mapping[str, bool | int | float | str],
    folder: Path,
    *,
    nodes: int,
    federation_config: str = "",
    log: Path,
    result: Path,
) -> None:
    """Run the Flower app in the folder `app`, and return once the file `result` is there.

    The app's ServerApp must write `result` atomically and as its last act: at that moment all processes are ended.
    `folder` is the run's folder: one launcher at a time may work on it. `federation_config` is in the form of
    `flwr run --federation-config` and goes before `nodes` and the one CPU a client. Output is appended to `log`.

    Raises LaunchFailed when the run ended without a result or could not be started; FolderBusy when another launcher
    works on `folder`; ValueError when `result` is there already, federation_config is no list of KEY=VALUE or `app` no
    Flower app; KeyboardInterrupt on Ctrl-C, SIGTERM or a closed terminal. No process of the run is left in any of these
    cases.
    """
    if result.exists():
        rule = "a result of this run could not be told from it"
        raise ValueError(f"{result} is there already: {rule}")
    federation = federation_words(nodes, federation_config)
    logged = log.stat().st_size if log.exists() else 0
    with simulation(app, folder, result.exists) as running:
        running.start(run_config, federation, log)
        died = running.wait(result)
        if not result.exists():
            raise running.failure(died, result, log, logged)
        time.sleep(LOG_LAG)


class Simulation:
    """One `flwr run` on a Ray and a SuperLink of its own."""

    def __init__(self, flower: Flower, stub: Path) -> None:
        self.flower = flower
        self.stub = stub
        """The folder of the Flower app that is run."""
        self.link: subprocess.Popen[bytes]
        self.stream: subprocess.Popen[bytes]
        """`flwr run --stream`."""

    def start(
        self,
        run_config: Mapping[str, bool | int | float | str],
        federation: str,
        output: Path,
    ) -> None:
        """Start all processes; what `flwr run` prints is appended to `output`. Raises LaunchFailed."""
        settings = self.flower.home / "run.toml"
        settings.write_text(tomli_w.dumps(run_config), encoding="utf-8")
        # A Ray that runs already cannot be told how many CPUs and GPUs it has, so then flwr is left to start it, or
        # not to.
        if os.environ.get("RAY_ADDRESS") or "init-args-num-" in federation:
            wait_for_ray = None
        else:
            wait_for_ray = self.flower.ray()
        self.link = self.flower.superlink()
        if wait_for_ray:
            wait_for_ray()
        words = [str(self.stub), "own", "--stream", "--run-config", str(settings)]
        words += ["--federation-config", federation]
        self.stream = self.flower.start("flwr", "run", *words, output=output)

    def wait(self, result: Path) -> str:
        """Return at the result or the end of `flwr run`: a sentence when a process died before that, else ""."""
        return _wait(self.flower, self.link, self.stream, result)

    def failure(self, died: str, result: Path, log: Path, logged: int) -> LaunchFailed:
        """Return the error for a run that ended without its result, and append the processes' own output to its log.

        Args:
            died: what `wait` returned.
            result: that is missing.
            log: of the run.
            logged: bytes of the log from before this run.
        """
        flower = self.flower
        status, details = flower.status() if self.link.poll() is None else ("", "")
        with log.open("rb") as file:
            file.seek(logged)
            text = file.read().decode(errors="replace")
        with log.open("ab") as file:  # what a crash of the interpreter printed is only there
            for name in ("superlink.log", "ray.log"):
                output = flower.home / name
                if output.exists():
                    file.write(f"\n--- {name} ---\n".encode())
                    file.write(output.read_bytes())
        if died and not details:
            return LaunchFailed(died)
        why = reason(text, details)
        return LaunchFailed(why or f"the run ended without {result}: {status or 'status unknown'}")


@contextmanager
def simulation(
    app: Path,
    folder: Path,
    is_done: Callable[[], bool],
    serverapp: str = "",
) -> Iterator[Simulation]:
    """Within this context, an app can be run; at its end no process is left, nor the temporary folder.

    Args:
        app: the folder of the Flower app.
        folder: that marks the processes; one launcher at a time may use it.
        is_done: returns whether nothing is wanted of the processes when the context ends, so that they get no time.
        serverapp: MODULE:NAME in place of the app's own ServerApp.

    Raises:
        LaunchFailed: `app` is no folder of an app.
        FolderBusy: another launcher's processes carry the mark.
        ValueError: `app` is no Flower app.
    """
    if not (app / "pyproject.toml").is_file():
        rule = "the Ray engine needs a clone installed by `pip install -e '.[simulation]'`"
        raise LaunchFailed(f"no pyproject.toml in {app}: {rule}")
    clear_leftovers()
    temporary_folder = tempfile.TemporaryDirectory(
        prefix=PREFIX, dir=short_folder(LONGEST), ignore_cleanup_errors=True
    )
    with one_interrupt(), temporary_folder as temporary:
        home = Path(temporary)
        note_owner(home)
        flower = Flower(home, folder)
        claim(folder)
        stub = write_stub_app(app, home / "app", serverapp)
        try:
            try:
                yield Simulation(flower, stub)
            finally:
                flower.end(HASTE if is_done() else PATIENCE)
        except KeyboardInterrupt:
            flower.end()  # the interrupt may have hit the cleaning; there is only one, so nothing can hit this
            raise


def _wait(
    flower: Flower,
    link: subprocess.Popen[bytes],
    stream: subprocess.Popen[bytes],
    result: Path,
) -> str:
    """Return at the result or the run's end: a sentence when a process died before that, else ""."""
    simulation: psutil.Process | None = None
    last_search = last_status = time.monotonic()
    ended = float("inf")  # when the simulation process was first seen to have ended
    while not result.exists():
        now = time.monotonic()
        if link.poll() is not None:
            return "the SuperLink ended before the run did: was it killed?"
        if stream.poll() is not None:
            return ""
        if simulation is None and now - last_search > 0.5:
            last_search = now
            simulation = flower.simulation()
        if simulation is not None and not alive(simulation):
            ended = min(ended, now)
        if now - ended > FAREWELL:
            return "flwr-simulation, the process of the ServerApp, ended without a result: killed, or out of memory?"
        if now - last_status > STATUS_INTERVAL:
            status, _ = flower.status()
            if status.startswith("finished"):
                return ""
            last_status = time.monotonic()
        time.sleep(0.05)
    return ""


def reason(text: str, details: str) -> str:
    """Return why a run failed, in its exception's own words, or "" when neither has a reason.

    `text` is what `flwr run --stream` printed, `details` the run's status-details: str(exception) behind a preamble.
    """
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)  # colors
    details = re.sub(r"^\w+ failed with exception: ?", "", details.strip())
    if details:  # the exception's name is in the log only
        first = re.escape(details.splitlines()[0])
        names = re.findall(rf"^([\w.]+): {first}$", text, re.MULTILINE)
        return spoken(names[-1], details) if names else details

    # flwr prints an error in a box where it refuses the run before it starts.
    _, _, after_heading = text.partition("╭─ Error")
    box = re.findall(r"^│ (.*?) *│$", after_heading, re.MULTILINE)
    if box:
        return " ".join(box)
    traceback = r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+([\w.]+)(?:: )?(.*)$"
    exceptions = re.findall(traceback, text, re.MULTILINE)
    if exceptions:
        name, sentence = exceptions[-1]
        return spoken(name, sentence)
    return ""


def federation_words(nodes: int, given: str) -> str:
    """Return the federation config: `nodes`, one CPU a client, and over both what is `given`.

    Raises ValueError when `given` is no list of KEY=VALUE.
    """
    pair = r"([\w-]+)=('[^']*'|\"[^\"]*\"|\S+)"
    if re.sub(pair, "", given).strip():
        raise ValueError(f"federation-config = {given!r}: must be KEY=VALUE, separated by spaces")
    values = {"num-supernodes": str(nodes), "client-resources-num-cpus": "1"}
    values |= dict(re.findall(pair, given))
    return " ".join(f"{key}={value}" for key, value in values.items())
