"""A work in FedJAX, with its FedAvg and its default way through clients: `python of_fedjax.py WORK`."""

import random
import sys
import time
from importlib.metadata import version

import fedjax
import haiku
import jax
import jax.numpy as jnp
from fedjax.algorithms import fed_avg

from benchmarks.peers.work import CLASSES, WORKS, images, print_result, scaled

# Uniform within 1 / sqrt(inputs), as PyTorch draws a layer's first weights; Haiku's own learn faster at first.
FIRST_WEIGHTS = haiku.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")


def convolutions(channels: tuple[int, int], size: int, padding: str, widths: tuple[int, ...]):
    """Return two convolutions with pooling and linear layers, for images with channels last."""

    def logits(inputs):
        layers = []
        for width in channels:
            layers += [
                haiku.Conv2D(width, size, padding=padding, w_init=FIRST_WEIGHTS),
                jax.nn.relu,
                haiku.MaxPool(2, 2, "VALID", channel_axis=-1),
            ]
        layers.append(haiku.Flatten())
        for width in widths:
            layers += [haiku.Linear(width, w_init=FIRST_WEIGHTS), jax.nn.relu]
        return haiku.Sequential([*layers, haiku.Linear(CLASSES, w_init=FIRST_WEIGHTS)])(inputs)

    return logits


def linear(inputs):
    """Return the logits of logistic regression."""
    return haiku.Sequential([haiku.Flatten(), haiku.Linear(CLASSES, w_init=FIRST_WEIGHTS)])(inputs)


MODELS = {
    "mcmahan-cnn": convolutions((32, 64), 5, "SAME", (512,)),
    "small-cnn": convolutions((16, 32), 3, "SAME", (64,)),
    "linear": linear,
}


def main(name: str) -> None:
    """Run the work and print what it took."""
    work = WORKS[name]
    made = images(work)
    inputs = scaled(made.train_MNCHW).transpose(0, 1, 3, 4, 2).copy()
    clients = {}
    for client in range(work.clients):
        examples = {"x": inputs[client], "y": made.train_labels_MN[client].astype("int32")}
        clients[str(client)] = examples
    data = fedjax.InMemoryFederatedData(clients)

    network = haiku.without_apply_rng(haiku.transform(MODELS[work.model]))
    parameters = network.init(jax.random.PRNGKey(0), inputs[0, :1])

    def mean_loss(parameters, batch, key):
        logits = network.apply(parameters, batch["x"])
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], axis=1)
        return -chosen.mean()

    algorithm = fed_avg.federated_averaging(
        jax.grad(mean_loss),
        fedjax.optimizers.sgd(work.learning_rate),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch, num_epochs=work.epochs),
    )
    state = algorithm.init(parameters)
    key = jax.random.PRNGKey(1)
    random.seed(0)
    stamps = [time.perf_counter()]
    for _ in range(work.rounds):
        names = random.sample(sorted(clients), work.sampled)
        key, *keys = jax.random.split(key, work.sampled + 1)
        sampled = []
        for (client, dataset), client_key in zip(data.get_clients(names), keys, strict=True):
            sampled.append((client, dataset, client_key))
        state, _ = algorithm.apply(state, sampled)
        jax.block_until_ready(state.params)
        stamps.append(time.perf_counter())
    test = {
        "x": scaled(made.test_NCHW).transpose(0, 2, 3, 1),
        "y": made.test_labels_N.astype("int32"),
    }
    loss = float(mean_loss(state.params, test, None))
    print_result(version("fedjax"), stamps, loss)


if __name__ == "__main__":
    main(*sys.argv[1:])
