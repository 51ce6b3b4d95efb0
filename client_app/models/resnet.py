"""Residual networks; the blocks are torchvision's."""

from torch import nn

from client_app.models.classifier import Classifier


def load_blocks() -> None:
    """Import torchvision's blocks, two seconds, before processes are forked that may build a network of them."""
    import torchvision.models  # noqa: F401


RESNET8_WIDTH = 64
"""Channels of its stem and first stage in CReFF's code."""


def resnet8(shape: tuple[int, int, int], classes: int, width: int = RESNET8_WIDTH) -> Classifier:
    """CReFF's ResNet-8 (Shang et al. 2022): a block a stage, 64 to 256 channels; 1,227,594 parameters for C = 10.

    Args:
        shape: Channels, height and width of an image.
        classes: Number of outputs.
        width: Channels of the stem and the first stage; the others have twice and four times as many.
    """
    from torchvision.models.resnet import BasicBlock  # imported here: torchvision takes a second

    def stage(inputs: int, outputs: int, stride: int) -> nn.Module:
        shortcut = None
        if stride != 1 or inputs != outputs:
            shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
        block: nn.Module = BasicBlock(inputs, outputs, stride, shortcut)
        return block

    features = nn.Sequential(
        _small_stem(shape[0], width), nn.BatchNorm2d(width), nn.ReLU(),
        stage(width, width, 1), stage(width, 2 * width, 2), stage(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    for module in features.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return Classifier(features, nn.Linear(4 * width, classes))


def resnet18(shape: tuple[int, int, int], classes: int) -> Classifier:
    """ResNet-18 for small images (He et al. 2016): stem 3x3 with stride 1, no max-pool; 11,173,962 parameters."""
    return _resnet("resnet18", shape, classes, small=True)


def resnet50(shape: tuple[int, int, int], classes: int) -> Classifier:
    """ResNet-50 for small images: stem 3x3, no max-pool; 23,520,842 parameters, 23,910,152 for C = 200."""
    return _resnet("resnet50", shape, classes, small=True)


def resnet18_imagenet(shape: tuple[int, int, int], classes: int) -> Classifier:
    """torchvision's ResNet-18: stem 7x7 with stride 2, max-pool; 11,181,642 parameters."""
    return _resnet("resnet18", shape, classes, small=False)


def resnet50_imagenet(shape: tuple[int, int, int], classes: int) -> Classifier:
    """torchvision's ResNet-50: stem 7x7 with stride 2, max-pool; 23,528,522 parameters, 23,917,832 for C = 200."""
    return _resnet("resnet50", shape, classes, small=False)


def _small_stem(channels: int, width: int = 64) -> nn.Conv2d:
    return nn.Conv2d(channels, width, 3, padding=1, bias=False)


def _resnet(name: str, shape: tuple[int, int, int], classes: int, small: bool) -> Classifier:
    """Return torchvision's network cut at its head, its first convolution changed where the inputs ask for it."""
    import torchvision.models

    whole = getattr(torchvision.models, name)(num_classes=classes)
    channels = shape[0]
    if small:
        first = _small_stem(channels)
        pool = []
    else:
        first = nn.Conv2d(channels, 64, 7, 2, padding=3, bias=False)
        pool = [whole.maxpool]
    nn.init.kaiming_normal_(first.weight, mode="fan_out", nonlinearity="relu")
    features = nn.Sequential(
        first,
        whole.bn1,
        *pool,  # before the ReLU, as in cnn.py: the same result, of fewer numbers
        whole.relu,
        whole.layer1,
        whole.layer2,
        whole.layer3,
        whole.layer4,
        whole.avgpool,
        nn.Flatten(),
    )
    return Classifier(features, whole.fc)
