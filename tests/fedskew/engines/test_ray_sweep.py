"""The runs of a sweep on Ray: what they share, when it starts anew, and what the ServerApp answers."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from in_process import experiment, small

import fedskew.engines.ray_sweep
from fedskew.engines import APP
from fedskew.engines.flower import LaunchFailed
from fedskew.engines.processes import LAUNCHER, identity
from fedskew.engines.ray_server import attempt, main
from fedskew.engines.ray_sweep import RaySweep, answer_file, end_line, order_file
from fedskew.engines.workers import WorkersGrid
from server_app.run_folder import RunFolder


class FakeSimulation:
    """In place of Ray: answers an order with the reason that its settings state, and prints their text."""

    def __init__(self, home: Path) -> None:
        self.flower = SimpleNamespace(home=home)
        self.federation = ""

    def start(self, config: dict[str, Any], federation: str, output: Path) -> None:
        self.federation = federation
        self.output = output
        output.write_text("started\n")

    def wait(self, answer: Path) -> str:
        number = int(answer.stem.rpartition("-")[2])
        order = json.loads(order_file(self.flower.home, number).read_text())
        if order.get("interrupt"):
            raise KeyboardInterrupt
        with self.output.open("a") as file:
            file.write(f"{order['text']}\n")
        if "died" in order:
            return str(order["died"])
        self.print_late(end_line(number) + order.get("late", ""))
        answer.write_text(json.dumps({"reason": order.get("reason", "")}))
        return ""

    def print_late(self, text: str) -> None:
        """Print after the answer, as flwr's log stream is late."""

        def late() -> None:
            time.sleep(0.3)
            with self.output.open("a") as file:
                file.write(text)

        threading.Thread(target=late).start()

    def failure(self, died: str, result: Path, log: Path, logged: int) -> LaunchFailed:
        return LaunchFailed(died)


class Sweep:
    """A sweep on such simulations, and all of them that were started and that have ended."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self.ray_sweep = RaySweep(APP)
        self.started: list[FakeSimulation] = []
        self.ended: list[bool] = []
        """For each: whether nothing was wanted of it any more."""

    @contextmanager
    def simulation(
        self, app: Path, mark: Path, is_done: Callable[[], bool], serverapp: str
    ) -> Iterator[FakeSimulation]:
        home = self.results / f"home-{len(self.started)}"
        home.mkdir(parents=True)
        running = FakeSimulation(home)
        self.started.append(running)
        try:
            yield running
        finally:
            self.ended.append(is_done())

    def run(self, name: str, nodes: int = 2, **config: Any) -> str:
        """Run it and return its log."""
        folder = self.results / name
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "flwr.log"
        self.ray_sweep.run(
            {"text": name, **config}, folder, nodes=nodes, federation_config="", log=log
        )
        return log.read_text()


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    sweep = Sweep(tmp_path / "results")
    monkeypatch.setattr(fedskew.engines.ray_sweep, "simulation", sweep.simulation)
    return sweep


def test_the_runs_of_a_sweep_share_one_start_and_each_has_its_own_log(sweep: Sweep) -> None:
    with sweep.ray_sweep:
        assert sweep.run("one", late="about the next one\n") == "started\none\n"
        assert sweep.run("two") == "about the next one\ntwo\n"
        assert sweep.run("one") == "started\none\none\n", "a log is appended to"
        assert len(sweep.started) == 1 and not sweep.ended
    assert sweep.ended == [True]


def test_after_a_failed_run_everything_starts_again(sweep: Sweep) -> None:
    with sweep.ray_sweep:
        sweep.run("one")
        with pytest.raises(LaunchFailed, match=r"^diverged$"):
            sweep.run("bad", reason="diverged")
        assert sweep.ended == [True]
        assert sweep.run("two") == "started\ntwo\n"
        assert len(sweep.started) == 2


def test_a_lost_server_app_is_named_and_its_partial_files_are_deleted(sweep: Sweep) -> None:
    partial = sweep.results / "lost" / ".checkpoint.safetensors.4711"
    partial.parent.mkdir(parents=True)
    partial.touch()
    with sweep.ray_sweep:
        with pytest.raises(LaunchFailed, match=r"^the SuperLink ended$"):
            sweep.run("lost", died="the SuperLink ended")
        assert sweep.ended == [False] and not partial.exists()
        sweep.run("lost")
    assert sweep.ended == [False, True]


def test_an_interrupt_ends_the_processes(sweep: Sweep) -> None:
    with pytest.raises(KeyboardInterrupt), sweep.ray_sweep:
        sweep.run("one", interrupt=True)
    assert sweep.ended == [False]


def test_another_federation_or_results_folder_needs_another_start(sweep: Sweep) -> None:
    with sweep.ray_sweep:
        sweep.run("one")
        sweep.run("two", nodes=1)
        sweep.run("elsewhere/three", nodes=1)
        sweep.run("elsewhere/four", nodes=1)
    assert [running.federation.split()[0] for running in sweep.started] == [
        "num-supernodes=2",
        "num-supernodes=1",
        "num-supernodes=1",
    ]


def test_a_wrong_federation_config_costs_no_start(sweep: Sweep) -> None:
    with sweep.ray_sweep:
        sweep.run("one")
        with pytest.raises(ValueError, match="KEY=VALUE"):
            sweep.ray_sweep.run(
                {}, sweep.results / "one", nodes=2, federation_config="x", log=Path("log")
            )
        assert not sweep.ended


def test_a_folder_that_is_no_app_is_refused(tmp_path: Path) -> None:
    with RaySweep(tmp_path) as ray_sweep, pytest.raises(LaunchFailed, match="pip install -e"):
        ray_sweep.run({}, tmp_path / "run", nodes=2, federation_config="", log=tmp_path / "log")


def test_the_server_app_executes_orders_with_the_hashes_of_runs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second order fails, and the third is executed nevertheless. The launcher is gone: nothing is waited for."""
    changes: list[dict[str, Any]] = [
        {"method": "fedbn"},
        {"method": "fedavg", "learning_rate": 1e30},
        {"method": "fedshift"},
    ]
    planned = [small(tmp_path / "sweep", **change) for change in changes]
    for number, settings in enumerate(planned):
        order_file(tmp_path, number).write_text(json.dumps(settings.run_config()))
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setenv(LAUNCHER, "")
    with WorkersGrid() as grid:
        main(grid, Context(0, 0, {}, RecordDict(), {}))  # type: ignore[arg-type]
    answers = [json.loads(answer_file(tmp_path, number).read_text()) for number in range(3)]
    assert [bool(answer["reason"]) for answer in answers] == [False, True, False]
    assert answers[1]["reason"].startswith("diverged in round 1: ")
    for place in (0, 2):
        summary = RunFolder(planned[place].folder).summary()
        alone = experiment(tmp_path / "alone", **changes[place])
        assert summary is not None and summary["hash"] == alone.summary["hash"]


def test_a_wrong_setting_is_answered_with_its_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with WorkersGrid() as grid:
        assert "alpha = 0.0: must be greater than 0" in attempt(grid, {"alpha": 0.0})  # type: ignore[arg-type]
    assert "Traceback" in capsys.readouterr().err


def test_the_server_app_waits_while_the_launcher_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Waited(Exception):
        pass

    def wait(seconds: float) -> None:
        raise Waited

    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setenv(LAUNCHER, identity())
    monkeypatch.setattr("fedskew.engines.ray_server.time.sleep", wait)
    with WorkersGrid() as grid, pytest.raises(Waited):
        main(grid, Context(0, 0, {}, RecordDict(), {}))  # type: ignore[arg-type]
