"""Model, data and training loop of the app; no line of it changes for FedSkew."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 10
TEST_PER_CLASS = 40
ALPHA = 0.1
"""Dirichlet concentration of the classes over the clients: the smaller, the more skewed."""
SMALLEST = 10
"""Samples that every client has at least."""


class Net(nn.Module):
    """A small CNN with batch norm for images of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, 10) logits of (B, 1, 8, 8) images."""
        maps = F.relu(self.norm1(self.conv1(images)))
        maps = F.relu(self.conv2(maps))
        logits: Tensor = self.fc2(F.relu(self.fc1(maps.flatten(1))))
        return logits


def split() -> tuple[TensorDataset, TensorDataset]:
    """Return training and test images with their labels; every class has as many test images."""
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(labels)))
    images, labels = images[order], labels[order]
    is_test = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(CLASSES):
        is_test[(labels == label).nonzero().flatten()[:TEST_PER_CLASS]] = True
    return (
        TensorDataset(images[~is_test], labels[~is_test]),
        TensorDataset(images[is_test], labels[is_test]),
    )


def partition(labels: Tensor, clients: int) -> list[list[int]]:
    """Return each client's samples: of every class they get shares drawn from a Dirichlet distribution."""
    draws = np.random.default_rng(0)
    while True:
        parts: list[list[int]] = [[] for _ in range(clients)]
        for label in range(CLASSES):
            members = np.flatnonzero(labels.numpy() == label)
            shares = draws.dirichlet([ALPHA] * clients)
            ends = (np.cumsum(shares) * len(members)).astype(int)[:-1]
            for part, own in zip(parts, np.split(members, ends), strict=True):
                part.extend(own.tolist())
        if min(map(len, parts)) >= SMALLEST:
            return parts


def load_data(node_config: Mapping[str, Any], batch_size: int) -> tuple[DataLoader, DataLoader]:
    """Return a client's loaders for training and validation.

    flwr's simulation states a partition of the digits. A SuperNode may name a file of its own: `data-path`.
    """
    if "partition-id" not in node_config:
        train, validation = own_data(Path(str(node_config["data-path"])))
        return DataLoader(train, batch_size, shuffle=True), DataLoader(validation, batch_size)
    partition_id = int(node_config["partition-id"])
    images, labels = split()[0].tensors
    own = torch.tensor(partition(labels, int(node_config["num-partitions"]))[partition_id])
    order = own[torch.randperm(len(own), generator=torch.Generator().manual_seed(partition_id))]
    held_out = max(1, len(own) // 5)
    train = TensorDataset(images[order[held_out:]], labels[order[held_out:]])
    validation = TensorDataset(images[order[:held_out]], labels[order[:held_out]])
    return DataLoader(train, batch_size, shuffle=True), DataLoader(validation, batch_size)


def own_data(file: Path) -> tuple[TensorDataset, TensorDataset]:
    """Return the training and test images of an npz file, uint8 (N, 8, 8), with their labels."""
    with np.load(file) as arrays:
        return TensorDataset(*tensors(arrays, "train")), TensorDataset(*tensors(arrays, "test"))


def tensors(arrays: Mapping[str, np.ndarray], part: str) -> tuple[Tensor, Tensor]:
    """Return the images (N, 1, 8, 8) on the scale 0..1 and the labels of a part, train or test."""
    images = torch.tensor(arrays[f"{part}_images"] / 255, dtype=torch.float32).unsqueeze(1)
    return images, torch.tensor(arrays[f"{part}_labels"], dtype=torch.int64)


def load_test_data() -> DataLoader:
    """Return a loader of the test images."""
    return DataLoader(split()[1], batch_size=128)


def train(
    net: nn.Module, loader: DataLoader, epochs: int, lr: float, device: torch.device
) -> float:
    """Train the model and return the mean loss over the batches."""
    net.to(device).train()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    losses = []
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(net(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def test(net: nn.Module, loader: DataLoader, device: torch.device) -> tuple[float, float]:
    """Return the mean loss and the accuracy."""
    net.to(device).eval()
    loss, correct, samples = 0.0, 0, 0
    for images, labels in loader:
        logits = net(images.to(device)).cpu()
        loss += F.cross_entropy(logits, labels, reduction="sum").item()
        correct += int((logits.argmax(1) == labels).sum())
        samples += len(labels)
    return loss / samples, correct / samples
