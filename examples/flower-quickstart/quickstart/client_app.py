"""The ClientApp: trains and evaluates the model on the client's own data."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import Net, load_data
from quickstart.task import test as test_fn
from quickstart.task import train as train_fn

app = ClientApp()
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    config = context.run_config
    trainloader, _ = load_data(context.node_config, config["batch-size"])
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    loss = train_fn(model, trainloader, config["local-epochs"], msg.content["config"]["lr"], device)
    metrics = {"train_loss": loss, "num-examples": len(trainloader.dataset)}
    content = {"arrays": ArrayRecord(model.cpu().state_dict()), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate the model on local data."""
    config = context.run_config
    _, validation = load_data(context.node_config, config["batch-size"])
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    loss, accuracy = test_fn(model, validation, device)
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(validation.dataset)}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
