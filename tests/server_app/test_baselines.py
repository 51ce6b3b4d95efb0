"""The baselines through whole runs: what their names stand for, what they share, and what they keep."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from in_process import FinishedRun, TamperingGrid, losses, small

from client_app.memory import folder_of
from client_app.memory import load as load_memory
from client_app.runtime import simulation_runtime
from client_app.state import State, digest
from client_app.training import train_round
from server_app.checkpoint import Checkpoint
from server_app.settings import defaults, parse, settings_of_run_config
from strategies.core.server_optimizer import ServerOptimizer

Train = Callable[..., FinishedRun]


def test_a_method_sets_what_its_name_stands_for_below_what_is_stated() -> None:
    def momentum(**config: Any) -> float:
        return parse({k.replace("_", "-"): v for k, v in config.items()}).general.server_momentum

    assert momentum(method="fedavg") == 0.0 and momentum(method="fedavgm") == 0.9
    assert momentum(method="fedavgm", server_momentum=0.97) == 0.97
    by_flwr = settings_of_run_config({**defaults(), "method": "fedavgm"})
    assert momentum(**by_flwr) == 0.9, "flwr states every key"
    form = parse({"method": "fedavgm", "server-momentum-form": "damped"})
    assert form.general.optimizer == ServerOptimizer(1.0, 0.9, "damped")
    assert parse({"method": "fedavgm"}).run_id != parse({"method": "fedavg"}).run_id


# ---- SCAFFOLD --------------------------------------------------------------------------------------------------------


def test_server_control_is_the_mean_of_the_clients(train: Train) -> None:
    """After a lost reply and after a refused one, with three of four clients."""
    changes = {"method": "scaffold+fedbn", "participation": 0.75, "evaluate_every": 0, "rounds": 3}
    sampled = [record["clients"] for record in train("plain", **changes).records]
    plan = {2: ("drop", sampled[1][0]), 3: ("nan", sampled[2][1])}
    outcome = train("lossy", grid=TamperingGrid(losses(plan)), min_reply_share=0.5, **changes)
    failed = [list(record["failures"]) for record in outcome.records]
    assert failed == [[], [str(plan[2][1])], [str(plan[3][1])]]
    checkpoint = Checkpoint.load(outcome.folder.checkpoint_file)
    control = checkpoint.states["scaffold"]
    total = {name: torch.zeros_like(tensor) for name, tensor in control.items()}
    for client, round in checkpoint.memory_rounds.items():
        memory = load_memory(folder_of(outcome.folder.path, client), round)
        for name, tensor in memory["control-variates"].items():
            total[name] += tensor / 4
    assert max((total[name] - control[name]).abs().max().item() for name in control) < 1e-10
    assert max(tensor.abs().max().item() for tensor in control.values()) > 1e-3


# ---- SingleSet -------------------------------------------------------------------------------------------------------


def test_singleset_is_separate_trainings_to_the_bit(train: Train, tmp_path: Path) -> None:
    changes = {"method": "singleset+iwds+fed-focal", "rounds": 3, "participation": 0.75}
    outcome = train(**changes)
    checkpoint = Checkpoint.load(outcome.folder.checkpoint_file)
    assert checkpoint.shared == {} and checkpoint.deployed == {"average": {}}
    assert {record[way] for record in outcome.records for way in ("bytes-up", "bytes-down")} == {0}
    settings = small(tmp_path, **changes)
    alone = simulation_runtime(settings.run_spec().to_json())
    for number, last in checkpoint.memory_rounds.items():
        memory: dict[str, State] = {}
        for record in outcome.records:
            if number in record["clients"]:
                client = alone.client(number, record["round"], {}, {}, memory)
                alone.load(client)
                memory = dict(train_round(client, settings.variants, settings.training).memory)
        kept = load_memory(folder_of(outcome.folder.path, number), last)
        assert digest([memory["private"]]) == digest([kept["private"]])
    values = outcome.records[-1]["models"]["average"]["client-accuracy"]["values"]
    assert len(set(values)) > 1
