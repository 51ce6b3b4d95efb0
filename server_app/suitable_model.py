"""The model that `model = auto` stands for."""

from data import DataSettings
from data.readers.catalog import KNOWN, has_domains, members

MODELS = {
    "abide": "abide-mlp", "office": "alexnet-bn", "domainnet": "alexnet-bn",
    "cinic10": "resnet-18", "tiny-imagenet": "resnet-50", "imagenet-lt": "resnet-50-imagenet",
    "scanners": "mlp-bn",
}  # fmt: skip
"""By data set, or by family of domains; all but the scanners' are the papers'."""


def suitable_model(data: DataSettings) -> str:
    """Return the model for a data set, or for inputs of its shape."""
    for name in members(data.dataset)[:1]:
        if name in KNOWN and (model := MODELS.get(name) or MODELS.get(KNOWN[name].family)):
            return model
    if len(data.shape) == 1:
        return "mlp-bn"
    if has_domains(data.dataset) or data.dataset == "mnist-m":
        return "digit-model"
    if data.shape[0] == 1:
        return "small-cnn" if data.shape[1] < 20 else "mcmahan-cnn"
    return "resnet-8"
