"""What a plan takes: rounds that were observed, probes of one round, and runs with nothing left."""

from pathlib import Path

import pytest
from command_line import FedSkew
from in_process import experiment, small

from fedskew.costs import ObservedRounds, plan_costs, probes, rounds_left
from fedskew.engines.workers import WorkersGrid
from server_app.app import run
from server_app.run_settings import RunSettings


def test_rounds_of_the_same_training_are_the_cost(tmp_path: Path) -> None:
    real = experiment(tmp_path, seed=3, method="ccvr", evaluate_every=2)
    first, second = real.folder.rounds()
    same = small(
        tmp_path, seed=1, method="ccvr", rounds=30, learning_rate=0.2, alpha=0.3, evaluate_every=3
    )
    observed = ObservedRounds(str(tmp_path))
    cost = observed.cost(same, 10)
    assert cost is not None
    evaluations = first.seconds.evaluation + second.seconds.evaluation
    training = (first.seconds.round + second.seconds.round - evaluations) / 2
    assert cost.seconds == pytest.approx(10 * training + 4 * second.seconds.evaluation)
    assert cost.up == 5 * (first.bytes_up + second.bytes_up)
    assert cost.down == 5 * (first.bytes_down + second.bytes_down)
    for key, value in {"batch_size": 8, "model": "small-cnn", "method": "fedavg"}.items():
        other = small(tmp_path, **{"method": "ccvr", key: value})
        assert observed.cost(other, 10) is None
    assert (
        rounds_left(small(tmp_path, seed=3, method="ccvr", evaluate_every=2)) == 0
        and rounds_left(same) == 30
    )


def test_each_training_is_probed_once(tmp_path: Path) -> None:
    def of(method: str, seed: int) -> RunSettings:
        return small(tmp_path, method=method, seed=seed, local_epochs=1, train_images=60)

    planned = [of(method, seed) for seed in (0, 1) for method in ("fedavg", "iwds")]
    first, second = chosen = probes(planned)
    assert [probe.general.method for probe in chosen] == ["fedavg", "iwds"]
    assert {probe.general.rounds for probe in chosen} == {1}
    with WorkersGrid() as grid:
        run(grid, first, lambda line: None)
    assert probes(planned) == [second]
    labels = {settings.run_id: "" for settings in planned}
    known = [entry.cost is not None for entry in plan_costs(planned, labels)]
    assert known == [True, False, True, False]
    assert not planned[0].folder.exists()


def test_a_dry_run_downloads_and_trains_nothing(tmp_path: Path, fedskew: FedSkew) -> None:
    words = ["--set", "dataset=mnist", "--set", f"data-root={tmp_path}", "--set", "download=true"]
    status, output, _ = fedskew("run", *words, "--results", tmp_path / "results", "--dry-run")
    assert status == 0 and "--probe" in output
    assert not list(tmp_path.iterdir())


def test_a_probe_prints_the_seconds_of_the_plan(tmp_path: Path, fedskew: FedSkew) -> None:
    words = ["--set", "rounds=50", "--set", "model=linear", "--results", tmp_path]
    status, output, errors = fedskew("run", *words, "--method", "fedavg,iwds", "--probe")
    assert status == 0, errors
    assert "2 probes of one round" in output and "?" not in output.rpartition(" run ")[2]
