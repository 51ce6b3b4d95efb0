"""The ServerApp: asks for the class counts, runs the rounds, and saves the model."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedskew.flower import ExactFedAvg, class_counts
from texts.task import CLASSES, SAMPLES, Net, Sequences, accuracy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    config = context.run_config
    torch.manual_seed(config["seed"])
    net = Net()
    strategy = ExactFedAvg(net)
    train_config = ConfigRecord({"lr": config["learning-rate"], **class_counts(grid)})
    result = strategy.start(
        grid,
        ArrayRecord(net.state_dict()),
        config["num-server-rounds"],
        train_config=train_config,
    )
    model = result.arrays.to_torch_state_dict()
    net.load_state_dict(model)
    test = Sequences(0, torch.arange(SAMPLES) % CLASSES)
    print(f"TRANSFORMER accuracy {100 * accuracy(net, test):.1f}", flush=True)
    if config["model-file"]:
        torch.save(model, config["model-file"])
