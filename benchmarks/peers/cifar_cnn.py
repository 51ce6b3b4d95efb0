"""BlazeFL's CNN as a model of FedSkew: `--set model=benchmarks.peers.cifar_cnn:cifar_cnn`."""

from torch import nn

from client_app.models import Classifier


def cifar_cnn(shape: tuple[int, int, int], classes: int) -> Classifier:
    """Return the network of networks.py of this name, for images of 3x32x32, with its last layer as the head."""
    features = nn.Sequential(
        nn.Conv2d(shape[0], 6, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(6, 16, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
    )
    return Classifier(features, nn.Linear(84, classes))
