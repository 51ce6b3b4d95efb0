"""What a plan takes: rounds that were observed, and runs with nothing left."""

import pytest
from in_process import experiment, small

from fedskew.execution import cost_of, observed_runs, rounds_left


def test_rounds_of_the_same_training_are_the_cost(tmp_path):
    real = experiment(tmp_path, seed=3, method="ccvr", evaluate_every=2)
    first, second = real.folder.rounds()
    others = {"seed": 1, "rounds": 30, "learning_rate": 0.2, "alpha": 0.3, "evaluate_every": 3}
    same = small(tmp_path, method="ccvr", **others)
    observed = observed_runs(str(tmp_path))
    cost = cost_of(same, 10, observed)
    evaluations = first.seconds.evaluation + second.seconds.evaluation
    training = (first.seconds.round + second.seconds.round - evaluations) / 2
    assert cost.seconds == pytest.approx(10 * training + 4 * second.seconds.evaluation)
    assert cost.up == 5 * (first.bytes_up + second.bytes_up)
    assert cost.down == 5 * (first.bytes_down + second.bytes_down)
    for key, value in {"batch_size": 8, "model": "small-cnn", "method": "fedavg"}.items():
        other = small(tmp_path, **{"method": "ccvr", key: value})
        assert cost_of(other, 10, observed) is None
    finished = small(tmp_path, seed=3, method="ccvr", evaluate_every=2)
    assert (rounds_left(finished), rounds_left(same)) == (0, 30)


def test_a_dry_run_downloads_and_trains_nothing(tmp_path, fedskew):
    words = ["--set", "dataset=mnist", "--set", f"data-root={tmp_path}", "--set", "download=true"]
    status, output, _ = fedskew("run", *words, "--results", tmp_path / "results", "--dry-run")
    assert status == 0 and "--set rounds=1 --seed 0" in output
    assert not list(tmp_path.iterdir())


def test_rounds_of_another_command_give_the_cost_of_the_plan(tmp_path, fedskew):
    words = ["run", "--method", "fedavg,iwds", "--set", "model=linear", "--results", tmp_path]
    unknown = fedskew(*words, "--set", "rounds=50", "--dry-run")[1]
    assert unknown.partition("at a time")[2].split()[:3] == ["?", "?", "?"]
    short = ["--set", "rounds=1", "--seed", "0"]
    assert fedskew(*words, "--engine", "inprocess", *short)[0] == 0
    output = fedskew(*words, "--set", "rounds=50", "--dry-run")[1]
    assert "?" not in output.rpartition(" run ")[2] and "50" in output
