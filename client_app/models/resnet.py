"""Residual networks (He et al. 2016).

Layers, their names and the order in which their weights are drawn are those of torchvision's models.resnet: a state
fits both, and a seed gives both the same weights. That module itself would load torch's compiler with every plan.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from client_app.models.classifier import Classifier


class Block(nn.Sequential):
    """Convolutions, and a shortcut around them: two of 3x3, or in a bottleneck 1x1, 3x3 and 1x1.

    Args:
        inputs: Channels that come in.
        planes: Channels of the convolutions; a bottleneck's last one has four times as many.
        stride: Of the first convolution of 3x3; where it is 1 and the channels stay, the inputs themselves are added.
        bottleneck: Whether the block is ResNet-50's and not ResNet-18's.
    """

    def __init__(self, inputs: int, planes: int, stride: int, bottleneck: bool = False) -> None:
        super().__init__()
        outputs = 4 * planes if bottleneck else planes
        layers = [(inputs, planes, 3, stride), (planes, planes, 3)]
        if bottleneck:
            layers = [(inputs, planes, 1), (planes, planes, 3, stride), (planes, outputs, 1)]
        for number, layer in enumerate(layers, start=1):
            if number > 1:
                self.add_module(f"relu{number - 1}", nn.ReLU(inplace=True))
            self.add_module(f"conv{number}", _convolution(*layer))
            self.add_module(f"bn{number}", nn.BatchNorm2d(layer[1]))
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            shortcut = _convolution(inputs, outputs, 1, stride)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, inputs_B: Tensor) -> Tensor:
        *layers, downsample = self
        hidden_B = inputs_B
        for layer in layers:
            hidden_B = layer(hidden_B)
        hidden_B += downsample(inputs_B)
        return F.relu(hidden_B, inplace=True)


def resnet8(shape: tuple[int, int, int], classes: int) -> Classifier:
    """CReFF's ResNet-8 (Shang et al. 2022): a block a stage, 64 to 256 channels; 1,227,594 parameters for C = 10."""
    features = nn.Sequential(
        _convolution(shape[0], 64, 3), nn.BatchNorm2d(64), nn.ReLU(),
        Block(64, 64, 1), Block(64, 128, 2), Block(128, 256, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    _draw_convolutions(features)
    return Classifier(features, nn.Linear(256, classes))


def resnet18(shape: tuple[int, int, int], classes: int) -> Classifier:
    """ResNet-18 for small images (He et al. 2016): stem 3x3 with stride 1, no max-pool; 11,173,962 parameters."""
    return _resnet(shape, classes, (2, 2, 2, 2), small=True)


def resnet50(shape: tuple[int, int, int], classes: int) -> Classifier:
    """ResNet-50 for small images: stem 3x3, no max-pool; 23,520,842 parameters, 23,910,152 for C = 200."""
    return _resnet(shape, classes, (3, 4, 6, 3), small=True, bottleneck=True)


def resnet18_imagenet(shape: tuple[int, int, int], classes: int) -> Classifier:
    """torchvision's ResNet-18: stem 7x7 with stride 2, max-pool; 11,181,642 parameters."""
    return _resnet(shape, classes, (2, 2, 2, 2))


def resnet50_imagenet(shape: tuple[int, int, int], classes: int) -> Classifier:
    """torchvision's ResNet-50: stem 7x7 with stride 2, max-pool; 23,528,522 parameters, 23,917,832 for C = 200."""
    return _resnet(shape, classes, (3, 4, 6, 3), bottleneck=True)


def _resnet(
    shape: tuple[int, int, int],
    classes: int,
    blocks: tuple[int, ...],
    small: bool = False,
    bottleneck: bool = False,
) -> Classifier:
    """Return torchvision's network with `blocks` of them in each stage; `small` gives it a stem for small images."""
    features = nn.Sequential(_convolution(3, 64, 7, 2), nn.BatchNorm2d(64))
    if not small:  # before the ReLU, as in small_networks.py: the same result, of fewer numbers
        features.append(nn.MaxPool2d(3, 2, padding=1))
    features.append(nn.ReLU(inplace=True))
    channels = 64
    for stage, number in enumerate(blocks):
        planes = 64 * 2**stage
        stride = 1 if stage == 0 else 2
        layers = nn.Sequential(Block(channels, planes, stride, bottleneck))
        channels = 4 * planes if bottleneck else planes
        for _ in range(number - 1):
            layers.append(Block(channels, planes, 1, bottleneck))
        features.append(layers)
    features.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten()])
    head = nn.Linear(channels, classes)
    _draw_convolutions(features)
    # The stem of torchvision has only drawn; the one for these images is drawn last.
    features[0] = _convolution(shape[0], 64, 3) if small else _convolution(shape[0], 64, 7, 2)
    _draw_convolutions(features[0])
    return Classifier(features, head)


def _convolution(inputs: int, outputs: int, side: int, stride: int = 1) -> nn.Conv2d:
    """Return a convolution without bias that keeps an image's sides, but for its stride."""
    return nn.Conv2d(inputs, outputs, side, stride, padding=side // 2, bias=False)


def _draw_convolutions(network: nn.Module) -> None:
    """Draw the weights of all convolutions anew (He et al. 2015)."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
