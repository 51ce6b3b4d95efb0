"""The ClientApp: trains and evaluates the model on the client's own sequences."""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedskew.flower import load_model, local_round
from texts.task import Net, accuracy, load_data

app = ClientApp()


@app.train()
@app.query()
def train(msg: Message, context: Context) -> Message:
    """Train the model, or answer the question about class counts."""
    return local_round(
        msg,
        context,
        Net(),
        load_data(context.node_config["partition-id"]),
        variants=["fedshift"],
        epochs=context.run_config["local-epochs"],
        label="labels",
    )


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate the model."""
    data = load_data(context.node_config["partition-id"])
    model = load_model(msg, context, Net())
    metrics = {"eval_acc": accuracy(model, data), "num-examples": len(data)}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
