"""A work as a bare PyTorch loop, one client after the other: `python of_loop.py WORK`."""

import random
import sys
import time

import torch
from torch import Tensor

from benchmarks.peers.networks import build, test_loss
from benchmarks.peers.work import WORKS, images, print_result, scaled


def main(name: str) -> None:
    """Run the work and print what it took."""
    work = WORKS[name]
    made = images(work)
    inputs = torch.from_numpy(scaled(made.train_MNCHW))
    labels = torch.from_numpy(made.train_labels_MN)
    model = build(work.model)
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    stamps = [time.perf_counter()]
    for _ in range(work.rounds):
        total: dict[str, Tensor] = {key: torch.zeros_like(tensor) for key, tensor in state.items()}
        for client in random.sample(range(work.clients), work.sampled):
            model.load_state_dict(state)
            model.train()
            optimizer = torch.optim.SGD(model.parameters(), lr=work.learning_rate)
            for _ in range(work.epochs):
                for indices in torch.randperm(work.samples).split(work.batch):
                    optimizer.zero_grad()
                    logits = model(inputs[client, indices])
                    torch.nn.functional.cross_entropy(logits, labels[client, indices]).backward()
                    optimizer.step()
            for key, tensor in model.state_dict().items():
                total[key] += tensor / work.sampled
        state = total
        stamps.append(time.perf_counter())
    model.load_state_dict(state)
    loss = test_loss(
        model, torch.from_numpy(scaled(made.test_NCHW)), torch.from_numpy(made.test_labels_N)
    )
    print_result(torch.__version__, stamps, loss)


if __name__ == "__main__":
    main(*sys.argv[1:])
