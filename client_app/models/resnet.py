"""Residual networks; the blocks are torchvision's."""

from torch import nn

from client_app.models.classifier import Classifier


def resnet8(shape: tuple[int, int, int], classes: int) -> Classifier:
    """CReFF's ResNet-8 (Shang et al. 2022): a block a stage, 64 to 256 channels; 1,227,594 parameters for C = 10."""
    from torchvision.models.resnet import BasicBlock  # imported here: torchvision takes a second

    def stage(inputs: int, outputs: int, stride: int) -> nn.Module:
        shortcut = None
        if stride != 1 or inputs != outputs:
            shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        block: nn.Module = BasicBlock(inputs, outputs, stride, shortcut)
        return block

    features = nn.Sequential(
        nn.Conv2d(shape[0], 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        stage(64, 64, 1), stage(64, 128, 2), stage(128, 256, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    for module in features.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return Classifier(features, nn.Linear(256, classes))
