"""A work in fluke, with its FedAvg in one process: `python of_fluke.py WORK`."""

import sys
import time
from importlib.metadata import version

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.utils import FederationObserver

from benchmarks.peers.networks import CLASSES, build, test_loss
from benchmarks.peers.work import WORKS, images, print_result, scaled


class Clock(FederationObserver):
    """Notes when each round begins and ends."""

    def __init__(self) -> None:
        self.stamps: list[float] = []

    def start_round(self, round, global_model):
        """Note when the first round begins."""
        if not self.stamps:
            self.stamps.append(time.perf_counter())

    def end_round(self, round):
        """Note when a round ends."""
        self.stamps.append(time.perf_counter())


def main(name: str) -> None:
    """Run the work and print what it took."""
    work = WORKS[name]
    made = images(work)
    inputs = torch.from_numpy(scaled(made.train_MNCHW))
    labels = torch.from_numpy(made.train_labels_MN)
    test = torch.from_numpy(scaled(made.test_NCHW))
    test_labels = torch.from_numpy(made.test_labels_N)
    loaders = []
    for client in range(work.clients):
        tensors = inputs[client], labels[client]
        loaders.append(FastDataLoader(*tensors, num_labels=CLASSES, batch_size=work.batch))
    server_data = FastDataLoader(test, test_labels, num_labels=CLASSES, batch_size=64)
    container = DummyDataContainer(loaders, [None] * work.clients, server_data, CLASSES)

    environment = FlukeENV()
    environment.set_seed(0)
    environment.set_inmemory(True)
    # No evaluation: the loss is taken once, below.
    environment.set_evaluator(ClassificationEval(eval_every=10**9, n_classes=CLASSES))
    environment.set_eval_cfg(pre_fit=False, post_fit=False, server=False, locals=False)
    client = {
        "batch_size": work.batch,
        "local_epochs": work.epochs,
        "loss": torch.nn.CrossEntropyLoss,
        "optimizer": {"name": "SGD", "lr": work.learning_rate},
        "scheduler": {"name": "StepLR", "gamma": 1, "step_size": 1},
    }
    settings = DDict(client=client, server={"weighted": True}, model=build(work.model))
    algorithm = FedAVG(work.clients, DataSplitter(container), settings)
    clock = Clock()
    algorithm.set_callbacks([clock])
    algorithm.run(work.rounds, work.sampled / work.clients)
    loss = test_loss(algorithm.server.model, test, test_labels)
    print_result(version("fluke-fl"), clock.stamps, loss)


if __name__ == "__main__":
    main(*sys.argv[1:])
