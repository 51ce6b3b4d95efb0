"""Convolutional networks for digits and clothes.

Pooling comes before the activation, where the papers draw it behind. The largest value of a window is the same either
way, and so is every gradient, to the bit, but ReLU has a quarter of the values to go through.
"""

from torch import nn

from client_app.models.classifier import Classifier


def small_cnn(shape: tuple[int, int, int], classes: int) -> Classifier:
    """Two 3x3 convolutions with pooling, 64 features: for 8x8 digits; 13,706 parameters there."""
    channels, height, width = shape
    features = nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), 64),
        nn.ReLU(),
    )
    return Classifier(features, nn.Linear(64, classes))


def mcmahan_cnn(shape: tuple[int, int, int], classes: int) -> Classifier:
    """The CNN of McMahan et al. (2017); 1,663,370 parameters on 1x28x28 with 10 classes, 512 features."""
    channels, height, width = shape
    features = nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
    )
    return Classifier(features, nn.Linear(512, classes))


def digit_model(shape: tuple[int, int, int], classes: int) -> Classifier:
    """FedBN's digit model (Li et al. 2021), batch norm after all layers but the last; 14,219,210 parameters."""
    channels, height, width = shape

    def convolution(inputs: int, outputs: int, *pool: nn.Module) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 5, padding=2), nn.BatchNorm2d(outputs), *pool, nn.ReLU()]

    def linear(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]

    features = nn.Sequential(
        *convolution(channels, 64, nn.MaxPool2d(2)),
        *convolution(64, 64, nn.MaxPool2d(2)),
        *convolution(64, 128),
        nn.Flatten(),
        *linear(128 * (height // 4) * (width // 4), 2048),
        *linear(2048, 512),
    )
    return Classifier(features, nn.Linear(512, classes))


def vgg9(shape: tuple[int, int, int], classes: int) -> Classifier:
    """VGG-9 of FedMA (Wang et al. 2020), no batch norm, with dropout; 3,491,530 parameters on 3x32x32."""
    channels, height, width = shape

    def convolution(inputs: int, outputs: int, *pool: nn.Module) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), *pool, nn.ReLU()]

    features = nn.Sequential(
        *convolution(channels, 32),
        *convolution(32, 64, nn.MaxPool2d(2)),
        *convolution(64, 128),
        *convolution(128, 128, nn.MaxPool2d(2)),
        nn.Dropout2d(0.05),
        *convolution(128, 256),
        *convolution(256, 256, nn.MaxPool2d(2)),
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

    def convolution(
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int,
        padding: int,
        *pool: nn.Module,
    ) -> list[nn.Module]:
        return [
            nn.Conv2d(inputs, outputs, kernel, stride, padding),
            nn.BatchNorm2d(outputs),
            *pool,
            nn.ReLU(),
        ]

    def linear(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]

    features = nn.Sequential(
        *convolution(shape[0], 64, 11, 4, 2, nn.MaxPool2d(3, 2)),
        *convolution(64, 192, 5, 1, 2, nn.MaxPool2d(3, 2)),
        *convolution(192, 384, 3, 1, 1), *convolution(384, 256, 3, 1, 1),
        *convolution(256, 256, 3, 1, 1, nn.MaxPool2d(3, 2)),
        nn.AdaptiveAvgPool2d(6), nn.Flatten(),
        *linear(256 * 6 * 6, 4096), *linear(4096, 4096),
    )  # fmt: skip
    return Classifier(features, nn.Linear(4096, classes))
