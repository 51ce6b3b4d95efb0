"""How good is each client's own model, just trained, on the client's own classes? (IWDS's second finding.)

python scripts/local_accuracy.py RUN_FOLDER...

A run's global model is trained once more at every client, as in the round after its last one, and each client's model
is measured on the global test set: its recalls are weighted by the client's class distribution.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from client_app.metrics import evaluate_models, local_accuracies
from client_app.runtime import simulation_runtime
from client_app.training import train_round
from server_app.checkpoint import Checkpoint
from server_app.evaluation import metrics_from
from server_app.settings import parse


def local_accuracy(folder: Path) -> tuple[str, int, list[float]]:
    """Return the run's method and seed, and of each client the accuracy of its own model on its own classes."""
    torch.set_num_threads(1)
    settings = parse(json.loads((folder / "settings.json").read_text())["settings"])
    settings = replace(settings, general=replace(settings.general, device="cpu"))
    checkpoint = Checkpoint.load(folder / "checkpoint.safetensors")
    here = simulation_runtime(settings.run_spec().to_json())
    accuracies = []
    test = here.federation.test(None, "cpu")
    for number in range(here.federation.clients):
        client = here.client(number, checkpoint.round + 1, checkpoint.shared, {}, {})
        report = train_round(client, settings.variants, settings.training)
        scores = evaluate_models(here.model, {"own": report.trained.state}, test)["own"]
        recall = metrics_from(scores).recall
        counts_1C = torch.as_tensor(here.federation.counts_KC[[number]])
        accuracies += local_accuracies(recall, counts_1C)
    return settings.general.method, settings.general.seed, accuracies


def main() -> None:
    """Print a line a run."""
    for name in sys.argv[1:]:
        method, seed, accuracies = local_accuracy(Path(name))
        mean = 100 * sum(accuracies) / len(accuracies)
        worst = 100 * min(accuracies)
        print(f"{method} seed {seed}: mean {mean:.1f}, worst client {worst:.1f}")


if __name__ == "__main__":
    main()
