"""Residual networks (He et al. 2016).

Blocks, their names and the order in which their weights are drawn are those of torchvision's models.resnet, which takes
two seconds to import: a state fits both, and a seed gives both the same weights. Tests compare them.
"""

from torch import Tensor, nn

from client_app.models.classifier import Classifier

RESNET8_WIDTH = 64
"""Channels of its stem and first stage in CReFF's code."""


class BasicBlock(nn.Module):
    """Two convolutions of 3x3 and a shortcut around them: the block of ResNet-18.

    Args:
        inputs: Channels that come in.
        planes: Channels of both convolutions.
        stride: Of the first convolution.
        downsample: The shortcut, where channels or sides change; without it the inputs themselves are added.
    """

    EXPANSION = 1
    """Channels that come out, per plane."""

    def __init__(
        self, inputs: int, planes: int, stride: int = 1, downsample: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, planes, 3, stride)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _convolution(planes, planes, 3)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = downsample

    def forward(self, inputs_B: Tensor) -> Tensor:
        shortcut_B = inputs_B if self.downsample is None else self.downsample(inputs_B)
        hidden_B = self.relu(self.bn1(self.conv1(inputs_B)))
        outputs_B: Tensor = self.bn2(self.conv2(hidden_B))
        outputs_B += shortcut_B
        activated_B: Tensor = self.relu(outputs_B)
        return activated_B


class Bottleneck(nn.Module):
    """Convolutions of 1x1, 3x3 and 1x1 and a shortcut around them: the block of ResNet-50.

    Args:
        inputs: Channels that come in.
        planes: Channels of the first two convolutions.
        stride: Of the convolution of 3x3.
        downsample: The shortcut, where channels or sides change; without it the inputs themselves are added.
    """

    EXPANSION = 4
    """Channels that come out, per plane."""

    def __init__(
        self, inputs: int, planes: int, stride: int = 1, downsample: nn.Module | None = None
    ) -> None:
        super().__init__()
        outputs = planes * self.EXPANSION
        self.conv1 = _convolution(inputs, planes, 1)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = _convolution(planes, planes, 3, stride)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = _convolution(planes, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, inputs_B: Tensor) -> Tensor:
        shortcut_B = inputs_B if self.downsample is None else self.downsample(inputs_B)
        reduced_B = self.relu(self.bn1(self.conv1(inputs_B)))
        hidden_B = self.relu(self.bn2(self.conv2(reduced_B)))
        outputs_B: Tensor = self.bn3(self.conv3(hidden_B))
        outputs_B += shortcut_B
        activated_B: Tensor = self.relu(outputs_B)
        return activated_B


def resnet8(shape: tuple[int, int, int], classes: int, width: int = RESNET8_WIDTH) -> Classifier:
    """CReFF's ResNet-8 (Shang et al. 2022): a block a stage, 64 to 256 channels; 1,227,594 parameters for C = 10.

    Args:
        shape: Channels, height and width of an image.
        classes: Number of outputs.
        width: Channels of the stem and the first stage; the others have twice and four times as many.
    """
    features = nn.Sequential(
        _convolution(shape[0], width, 3), nn.BatchNorm2d(width), nn.ReLU(),
        _block(BasicBlock, width, width, 1),
        _block(BasicBlock, width, 2 * width, 2),
        _block(BasicBlock, 2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    _draw_convolutions(features)
    return Classifier(features, nn.Linear(4 * width, classes))


def resnet18(shape: tuple[int, int, int], classes: int) -> Classifier:
    """ResNet-18 for small images (He et al. 2016): stem 3x3 with stride 1, no max-pool; 11,173,962 parameters."""
    return _resnet(BasicBlock, (2, 2, 2, 2), shape, classes, small=True)


def resnet50(shape: tuple[int, int, int], classes: int) -> Classifier:
    """ResNet-50 for small images: stem 3x3, no max-pool; 23,520,842 parameters, 23,910,152 for C = 200."""
    return _resnet(Bottleneck, (3, 4, 6, 3), shape, classes, small=True)


def resnet18_imagenet(shape: tuple[int, int, int], classes: int) -> Classifier:
    """torchvision's ResNet-18: stem 7x7 with stride 2, max-pool; 11,181,642 parameters."""
    return _resnet(BasicBlock, (2, 2, 2, 2), shape, classes, small=False)


def resnet50_imagenet(shape: tuple[int, int, int], classes: int) -> Classifier:
    """torchvision's ResNet-50: stem 7x7 with stride 2, max-pool; 23,528,522 parameters, 23,917,832 for C = 200."""
    return _resnet(Bottleneck, (3, 4, 6, 3), shape, classes, small=False)


def _resnet(
    block: type[BasicBlock] | type[Bottleneck],
    blocks: tuple[int, ...],
    shape: tuple[int, int, int],
    classes: int,
    small: bool,
) -> Classifier:
    """Return torchvision's network, its first convolution changed where the inputs ask for it.

    Args:
        block: Of which the stages are made.
        blocks: Their number in every stage.
        shape: Channels, height and width of an image.
        classes: Number of outputs.
        small: Whether the stem is one for small images.
    """
    # torchvision's own stem is made, as it draws, and then left out: seeds have given these weights since 1.0.
    stem = nn.Sequential(_convolution(3, 64, 7, 2), nn.BatchNorm2d(64))
    stages = []
    channels = 64
    for stage, number in enumerate(blocks):
        planes = 64 * 2**stage
        layers = []
        for position in range(number):
            stride = 2 if stage and position == 0 else 1
            layers.append(_block(block, channels, planes, stride))
            channels = planes * block.EXPANSION
        stages.append(nn.Sequential(*layers))
    head = nn.Linear(channels, classes)
    for part in (stem, *stages):
        _draw_convolutions(part)

    if small:
        first = _convolution(shape[0], 64, 3)
        pool = []
    else:
        first = _convolution(shape[0], 64, 7, 2)
        pool = [nn.MaxPool2d(3, 2, padding=1)]
    _draw_convolutions(first)
    features = nn.Sequential(
        first,
        stem[1],
        *pool,  # before the ReLU, as in cnn.py: the same result, of fewer numbers
        nn.ReLU(inplace=True),
        *stages,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    return Classifier(features, head)


def _block(
    block: type[BasicBlock] | type[Bottleneck], inputs: int, planes: int, stride: int
) -> nn.Module:
    """Return a block with the shortcut that it needs."""
    outputs = planes * block.EXPANSION
    downsample = None
    if stride != 1 or inputs != outputs:
        downsample = nn.Sequential(
            _convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
        )
    return block(inputs, planes, stride, downsample)


def _convolution(inputs: int, outputs: int, side: int, stride: int = 1) -> nn.Conv2d:
    """Return a convolution without bias that keeps an image's sides, but for its stride."""
    return nn.Conv2d(inputs, outputs, side, stride, padding=side // 2, bias=False)


def _draw_convolutions(network: nn.Module) -> None:
    """Draw the weights of all convolutions anew (He et al. 2015)."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
