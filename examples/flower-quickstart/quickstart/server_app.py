"""The ServerApp: runs the rounds, tests the model of each, and saves the last one."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart.task import Net, load_test_data, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    config = context.run_config
    torch.manual_seed(config["seed"])
    arrays = ArrayRecord(Net().state_dict())
    strategy = FedAvg(fraction_evaluate=config["fraction-evaluate"])
    train_config = ConfigRecord({"lr": config["learning-rate"]})
    result = strategy.start(
        grid, arrays, config["num-server-rounds"], train_config=train_config, evaluate_fn=evaluate
    )
    model = result.arrays.to_torch_state_dict()
    report(model)
    if config["model-file"]:
        torch.save(model, config["model-file"])


def report(model: dict[str, torch.Tensor]) -> None:
    """Print the accuracy of the final model."""
    net = Net()
    net.load_state_dict(model)
    accuracy = test(net, load_test_data(), torch.device("cpu"))[1]
    print(f"QUICKSTART accuracy {100 * accuracy:.1f}", flush=True)


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Test the model of a round."""
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(net, load_test_data(), torch.device("cpu"))
    return MetricRecord({"loss": loss, "accuracy": accuracy})
