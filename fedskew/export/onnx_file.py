"""An exported model as ONNX."""

from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from client_app.models import Classifier
from data import SettingError
from fedskew.export.model_folder import ModelFolder

PACKAGES = ("onnx", "onnxscript")
"""What torch.onnx needs to write a file."""


def require_onnx() -> None:
    """Raise SettingError when a package is missing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        rule = f"needs {' and '.join(missing)}"
        remedy = "pip install 'fedskew[onnx]'"
        raise SettingError("--onnx", True, rule, remedy=remedy)


class FromPixels(nn.Module):
    """The model with its normalization before it, so that no reader of the file has to know that."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: Classifier, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return (B, C) logits of images on the scale 0..1 (uint8 / 255), or of vectors as they are."""
        logits_BC: Tensor = self.model((pixels - self.mean) / self.std)
        return logits_BC


def onnx_files(folder: ModelFolder) -> dict[Path, bytes]:
    """Return model.onnx, or site-NAME.onnx for the whole model of each site, with what is to be written there.

    The input `pixels` is (B, *shape), float32; the output `logits` (B, C).
    """
    about = folder.description
    per_channel = (-1, 1, 1) if len(about.shape) == 3 else (-1,)
    mean = torch.tensor(about.means).view(per_channel)
    std = torch.tensor(about.stds).view(per_channel)
    example = torch.zeros(2, *about.shape)
    states = {"model.onnx": folder.shared}
    if folder.sites:
        states = {}
        for name, private in folder.sites.items():
            states[f"site-{name}.onnx"] = {**folder.shared, **private}

    files = {}
    for name, state in states.items():
        folder.model.load_state_dict(state)
        program = torch.onnx.export(
            FromPixels(folder.model, mean, std).eval(),
            (example,),
            input_names=["pixels"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
        )
        assert program is not None  # as dynamo is True
        described = about.metadata()
        for key in described.keys() & {"input-columns", "medians"}:
            program.model.metadata_props[key] = described[key]
        # Serialized now: the program's weights are the model's own, which the next site's replace.
        files[folder.path / name] = program.model_proto.SerializeToString()
    return files
