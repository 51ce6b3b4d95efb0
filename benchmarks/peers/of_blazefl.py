"""A work in BlazeFL, with its FedAvg and two processes that share memory: `python of_blazefl.py WORK`."""

import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import torch
from blazefl.contrib import FedAvgBaseServerHandler, FedAvgProcessPoolClientTrainer
from blazefl.core import IPCMode
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers.networks import build, test_loss
from benchmarks.peers.work import WORKS, Work, images, print_result, scaled

PROCESSES = 2


class Networks:
    """BlazeFL's way to a network by its name."""

    def select_model(self, name: str) -> torch.nn.Module:
        """Return the network."""
        return build(name)


class Clients:
    """BlazeFL's way to the data of a client."""

    def __init__(self, work: Work) -> None:
        made = images(work)
        # Shared memory: every task of a client carries this object to a process.
        self.inputs = torch.from_numpy(scaled(made.train_MNCHW)).share_memory_()
        self.labels = torch.from_numpy(made.train_labels_MN).share_memory_()

    def get_dataset(self, type_: str, cid: int) -> TensorDataset:
        """Return a client's images and labels."""
        return TensorDataset(self.inputs[cid], self.labels[cid])

    def set_dataset(self, type_: str, cid: int, dataset: TensorDataset) -> None:
        """Keep nothing: no client changes its data."""

    def get_dataloader(
        self, type_: str, cid: int, batch_size: int, generator: torch.Generator
    ) -> DataLoader:
        """Return the batches of a client."""
        dataset = self.get_dataset(type_, cid)
        return DataLoader(dataset, batch_size, shuffle=True, generator=generator)


def main(name: str) -> None:
    """Run the work and print what it took."""
    work = WORKS[name]
    clients = Clients(work)
    shared = {
        "model_selector": Networks(),
        "model_name": work.model,
        "dataset": clients,
        "num_clients": work.clients,
        "device": "cpu",
        "batch_size": work.batch,
        "seed": 0,
    }
    handler = FedAvgBaseServerHandler(
        global_round=work.rounds, sample_ratio=work.sampled / work.clients, **shared
    )
    with tempfile.TemporaryDirectory(prefix="fedskew-benchmark-") as temporary:
        folder = Path(temporary)
        trainer = FedAvgProcessPoolClientTrainer(
            share_dir=folder / "share",
            state_dir=folder / "state",
            epochs=work.epochs,
            lr=work.learning_rate,
            num_parallels=PROCESSES,
            ipc_mode=IPCMode.SHARED_MEMORY,
            **shared,
        )
        stamps = [time.perf_counter()]
        while not handler.if_stop():
            trainer.local_process(handler.downlink_package(), handler.sample_clients())
            for package in trainer.uplink_package():
                handler.load(package)
            stamps.append(time.perf_counter())
    made = images(work)
    inputs = torch.from_numpy(scaled(made.test_NCHW))
    loss = test_loss(handler.model, inputs, torch.from_numpy(made.test_labels_N))
    print_result(version("blazefl"), stamps, loss)


if __name__ == "__main__":
    main(*sys.argv[1:])
