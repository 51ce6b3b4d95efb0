"""A multi-layer perceptron with batch norm, for vectors and small images."""

from math import prod

from torch import nn

from client_app.models.classifier import Classifier


def mlp_bn(shape: tuple[int, ...], classes: int) -> Classifier:
    """Two hidden layers of 128 and 64, each with batch norm."""
    features = nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(shape), 128), nn.BatchNorm1d(128), nn.ReLU(),
        nn.Linear(128, 64), nn.BatchNorm1d(64), nn.ReLU(),
    )  # fmt: skip
    return Classifier(features, nn.Linear(64, classes))
