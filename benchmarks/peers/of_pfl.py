"""A work in pfl-research, with its FedAvg in one process: `python of_pfl.py WORK`."""

import sys
import time
from importlib.metadata import version

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

from benchmarks.peers.networks import build, test_loss
from benchmarks.peers.work import WORKS, images, print_result, scaled


class Network(torch.nn.Module):
    """A network with the loss and metrics that pfl asks for."""

    def __init__(self, layers: torch.nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, inputs):
        """Return logits."""
        return self.layers(inputs)

    def loss(self, inputs, labels, is_eval=False):
        """Return the mean cross-entropy of a batch."""
        self.train(not is_eval)
        return torch.nn.functional.cross_entropy(self(inputs), labels)

    def metrics(self, inputs, labels):
        """Return the loss as pfl's metric."""
        with torch.no_grad():
            loss = self.loss(inputs, labels, is_eval=True).item()
        return {"loss": Weighted(loss * len(labels), len(labels))}


class Clock(TrainingProcessCallback):
    """Notes when each round ends."""

    def __init__(self) -> None:
        self.stamps: list[float] = []

    def on_train_begin(self, *, model):
        """Note when the first round begins."""
        self.stamps.append(time.perf_counter())
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """Note when a round ends, and go on."""
        self.stamps.append(time.perf_counter())
        return False, Metrics()


def main(name: str) -> None:
    """Run the work and print what it took."""
    work = WORKS[name]
    made = images(work)
    inputs = torch.from_numpy(scaled(made.train_MNCHW))
    labels = torch.from_numpy(made.train_labels_MN)

    def dataset_of(client: int) -> Dataset:
        return Dataset(raw_data=[inputs[client], labels[client]], user_id=str(client))

    np.random.seed(0)
    sampler = get_user_sampler("minimize_reuse", list(range(work.clients)))
    clients = FederatedDataset(dataset_of, sampler)
    network = Network(build(work.model))
    model = PyTorchModel(
        network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    clock = Clock()
    FederatedAveraging().run(
        backend=SimulatedBackend(training_data=clients, val_data=None),
        model=model,
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=work.rounds,
            evaluation_frequency=work.rounds + 1,
            train_cohort_size=work.sampled,
            val_cohort_size=0,
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=work.epochs,
            local_learning_rate=work.learning_rate,
            local_batch_size=work.batch,
        ),
        callbacks=[clock],
    )
    test = torch.from_numpy(scaled(made.test_NCHW))
    loss = test_loss(network, test, torch.from_numpy(made.test_labels_N))
    print_result(version("pfl"), clock.stamps, loss)


if __name__ == "__main__":
    main(*sys.argv[1:])
