"""Multi-layer perceptrons with batch norm, for vectors and small images."""

from math import prod

from torch import nn

from client_app.models.classifier import Classifier


def mlp_bn(shape: tuple[int, ...], classes: int) -> Classifier:
    """Two hidden layers of 128 and 64, each with batch norm."""
    return _mlp(shape, classes, 128, 64)


def abide_mlp(shape: tuple[int, ...], classes: int) -> Classifier:
    """FedBN's three layers for ABIDE (Li et al. 2021), here 16 wide; 96,306 parameters on 5,995 correlations, C = 2."""
    return _mlp(shape, classes, 16, 16)


def linear(shape: tuple[int, ...], classes: int) -> Classifier:
    """Logistic regression: the features are the inputs themselves, in one row."""
    return Classifier(nn.Flatten(), nn.Linear(prod(shape), classes))


def _mlp(shape: tuple[int, ...], classes: int, first: int, second: int) -> Classifier:
    hidden = (*normalized(prod(shape), first), *normalized(first, second))
    return Classifier(nn.Sequential(nn.Flatten(), *hidden), nn.Linear(second, classes))


def normalized(inputs: int, outputs: int) -> list[nn.Module]:
    """Return a linear layer, batch norm and ReLU."""
    return [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]
