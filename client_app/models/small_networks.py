"""Convolutional networks for digits and clothes, and perceptrons with batch norm for vectors and small images.

Pooling comes before the activation, where the papers draw it behind. The largest value of a window is the same either
way, and so is every gradient, to the bit, but ReLU has a quarter of the values to go through.
"""

from math import prod

from torch import nn

from client_app.models.classifier import Classifier


def small_cnn(shape: tuple[int, int, int], classes: int) -> Classifier:
    """Two 3x3 convolutions with pooling, 64 features: for 8x8 digits; 13,706 parameters there."""
    channels, height, width = shape
    features = nn.Sequential(
        *_convolution(channels, 16, 3, pool=2),
        *_convolution(16, 32, 3, pool=2),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), 64),
        nn.ReLU(),
    )
    return Classifier(features, nn.Linear(64, classes))


def mcmahan_cnn(shape: tuple[int, int, int], classes: int) -> Classifier:
    """The CNN of McMahan et al. (2017); 1,663,370 parameters on 1x28x28 with 10 classes, 512 features."""
    channels, height, width = shape
    features = nn.Sequential(
        *_convolution(channels, 32, 5, pool=2),
        *_convolution(32, 64, 5, pool=2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
    )
    return Classifier(features, nn.Linear(512, classes))


def digit_model(shape: tuple[int, int, int], classes: int) -> Classifier:
    """FedBN's digit model (Li et al. 2021), batch norm after all layers but the last; 14,219,210 parameters."""
    channels, height, width = shape
    features = nn.Sequential(
        *_convolution(channels, 64, 5, pool=2, norm=True),
        *_convolution(64, 64, 5, pool=2, norm=True),
        *_convolution(64, 128, 5, norm=True),
        nn.Flatten(),
        *_normalized(128 * (height // 4) * (width // 4), 2048),
        *_normalized(2048, 512),
    )
    return Classifier(features, nn.Linear(512, classes))


def vgg9(shape: tuple[int, int, int], classes: int) -> Classifier:
    """VGG-9 of FedMA (Wang et al. 2020), no batch norm, with dropout; 3,491,530 parameters on 3x32x32."""
    channels, height, width = shape
    features = nn.Sequential(
        *_convolution(channels, 32, 3),
        *_convolution(32, 64, 3, pool=2),
        *_convolution(64, 128, 3),
        *_convolution(128, 128, 3, pool=2),
        nn.Dropout2d(0.05),
        *_convolution(128, 256, 3),
        *_convolution(256, 256, 3, pool=2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(256 * (height // 8) * (width // 8), 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Dropout(0.1),
    )
    return Classifier(features, nn.Linear(512, classes))


def alexnet_bn(shape: tuple[int, int, int], classes: int) -> Classifier:
    """FedBN's AlexNet (Li et al. 2021): batch norm after all layers but the last, no dropout; 57,063,498 parameters."""
    features = nn.Sequential(
        nn.Conv2d(shape[0], 64, 11, stride=4, padding=2),
        nn.BatchNorm2d(64),
        nn.MaxPool2d(3, 2),
        nn.ReLU(),
        *_convolution(64, 192, 5, pool=3, norm=True),
        *_convolution(192, 384, 3, norm=True),
        *_convolution(384, 256, 3, norm=True),
        *_convolution(256, 256, 3, pool=3, norm=True),
        nn.AdaptiveAvgPool2d(6),
        nn.Flatten(),
        *_normalized(256 * 6 * 6, 4096),
        *_normalized(4096, 4096),
    )
    return Classifier(features, nn.Linear(4096, classes))


def _convolution(
    inputs: int, outputs: int, side: int, pool: int = 0, norm: bool = False
) -> list[nn.Module]:
    """Return a convolution that keeps an image's sides, batch norm if asked for, pooling to half of them, and ReLU."""
    layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, side, padding=side // 2)]
    if norm:
        layers.append(nn.BatchNorm2d(outputs))
    if pool:
        layers.append(nn.MaxPool2d(pool, stride=2))
    return [*layers, nn.ReLU()]


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
    hidden = (*_normalized(prod(shape), first), *_normalized(first, second))
    return Classifier(nn.Sequential(nn.Flatten(), *hidden), nn.Linear(second, classes))


def _normalized(inputs: int, outputs: int) -> list[nn.Module]:
    """Return a linear layer, batch norm and ReLU."""
    return [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]
