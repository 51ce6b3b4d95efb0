"""The files of an exported model: model.safetensors with what all sites share, site-NAME.safetensors with the rest."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from client_app import tensor_files
from client_app.client import TensorSpec
from client_app.memory import KEPT
from client_app.models import (
    MODELS,
    ModelSettings,
    batch_norm_names,
    build,
    is_backbone,
    is_own_model,
)
from client_app.state import State
from client_app.tensor_files import KIND, Damaged
from data import DataError, DataSettings
from strategies.core.validation import differences, expected_of, not_finite

MODEL_FILE = "model.safetensors"
Metadata = Mapping[str, str]
READ_BY = (
    "pixel_range",
    "frame",
    "columns",
    "missing",
    "test_fold",
)
"""Settings by which one's own data were read in training, and who tested was drawn."""
Files = Mapping[Path, tuple[State, Metadata]]
"""Tensors and metadata of a model's files."""


def site_file(folder: Path, site: str) -> Path:
    """Return the file of what one site keeps for itself."""
    return folder / f"site-{site}.safetensors"


@dataclass(frozen=True)
class Description:
    """What a model file says of itself, as safetensors' metadata; the data's part is written as in the settings."""

    run: str
    method: str
    model: str
    """Which of the run's deployed models."""
    round: str
    architecture: str
    classes: str
    input_shape: str
    mean: str
    std: str
    crop: str
    """center where images were resized to 8/7 of the shape and their center cut out, none elsewhere."""
    norm: str = "batch"
    image_side: int = 0
    pixel_range: str = ""
    frame: str = ""
    columns: str = ""
    missing: str = "refuse"
    test_fold: int = 0
    input_columns: tuple[str, ...] = ()
    """The names of a table's input columns in order; empty for images, and where nothing names them."""
    medians: tuple[float, ...] = ()
    """The median of each input column's training rows, in order; empty unless `missing = median` filled gaps in one
    table."""
    positive_class: str = ""
    """Of two classes the one that AUPRC, sensitivity and specificity are about."""

    def __post_init__(self) -> None:
        """Raise ValueError for an unknown architecture, and SettingError for what no settings can be."""
        name = self.architecture
        if not (name in MODELS or is_backbone(name) or is_own_model(name)):
            raise ValueError(f"architecture = {name!r:.100}: there is no such model")
        _ = self.class_names, self.model_settings
        channels = self.shape[0]
        means, stds = self.data.means, self.data.stds
        if not {len(means), len(stds)} <= {1, channels} or min(stds) <= 0:
            scale = f"mean = {self.mean!r:.100}, std = {self.std!r:.100}"
            raise ValueError(f"{scale}: must fit {self.input_shape}")
        columns = {len(self.input_columns), len(self.medians)}
        if not columns <= {0, channels}:
            raise ValueError(f"input-columns and medians: must be one for each of {channels}")

    @staticmethod
    def of(metadata: Metadata, path: Path) -> "Description":
        """Undo `metadata`. Raises DataError, naming the file, for what it does not write."""
        values: dict[str, Any] = {}
        try:
            for field in fields(Description):
                text = metadata.get(field.name.replace("_", "-"))
                if text is None and field.default is MISSING:
                    raise ValueError(f"lack {field.name}")
                if text is None:
                    continue
                if isinstance(field.default, tuple):
                    values[field.name] = tuple(json.loads(text))
                elif isinstance(field.default, int):
                    values[field.name] = int(text)
                else:
                    values[field.name] = text
            return Description(**values)
        except (ValueError, TypeError) as error:
            raise DataError(f"its metadata: {error}", where=str(path)) from None

    def metadata(self) -> dict[str, str]:
        """Return the description as metadata; safetensors' convention for PyTorch is format = pt."""
        metadata = {"format": "pt", KIND: "model"}
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                text = json.dumps(value, ensure_ascii=False) if isinstance(value, tuple) else value
                metadata[field.name.replace("_", "-")] = str(text)
        return metadata

    @property
    def data(self) -> DataSettings:
        """The settings that inputs are read by."""
        keys = (*READ_BY, "classes", "input_shape", "mean", "std")
        return DataSettings(**{key: getattr(self, key) for key in keys})

    @property
    def model_settings(self) -> ModelSettings:
        """The settings of the architecture."""
        return ModelSettings(norm=self.norm, image_side=self.image_side)

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.data.class_names

    @property
    def shape(self) -> tuple[int, ...]:
        """(C, H, W), or (F,) for vectors."""
        return self.data.shape

    def scale(self, device: str = "cpu") -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation by which inputs are normalized, as tensors beside a batch's inputs."""
        per_channel = (-1, 1, 1) if len(self.shape) == 3 else (-1,)
        mean = torch.tensor(self.data.means, device=device).view(per_channel)
        std = torch.tensor(self.data.stds, device=device).view(per_channel)
        return mean, std


class ModelFolder:
    """An exported model, checked. Raises DataError naming the file that is missing, broken, or of something else."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        """Read the folder; given `files`, the model's first, check what is going to be written there."""
        self.path = path
        file = path / MODEL_FILE
        is_new = files is not None
        content = files_in(path) if files is None else files
        self.shared, metadata = content[file]
        about = self.description = Description.of(metadata, file)
        classes = len(about.class_names)
        self.model = build(about.architecture, about.shape, classes, 0, about.model_settings)
        expected = dict(expected_of(self.model.state_dict()))
        self.private = frozenset(expected.keys() - self.shared.keys())
        of_sites = {name: expected.pop(name) for name in self.private}
        check_tensors(self.shared, expected, file)
        self.sites: dict[str, State] = {}
        self.samples: dict[str, int] = {}
        for site_path, (tensors, of_site) in content.items():
            if site_path == file:
                continue
            check_tensors(tensors, of_sites, site_path)
            if (of_site.get("run"), of_site.get("round")) != (about.run, about.round):
                rule = f"is of another run or round than {MODEL_FILE}"
                raise DataError(rule, where=str(site_path))
            self.sites[of_site["site"]] = tensors
            self.samples[of_site["site"]] = int(of_site["samples"])
        self.at_sites = bool(self.private) and not self.sites and KEPT in metadata
        """Whether each site keeps its part where it is: this is then no model of its own."""
        if self.private and not self.sites and not (self.at_sites and is_new):
            reason = "there is no site-NAME.safetensors that could hold it"
            if self.at_sites:
                reason = "every site keeps its own: `fedskew-site export` joins both there"
            raise DataError(f"{min(self.private)} is missing, and {reason}", where=str(file))

    @property
    def only_batch_norm_is_private(self) -> bool:
        """Whether what sites keep is batch norm's, so that a site nobody trained with can be given some."""
        return self.private <= batch_norm_names(self.model)


def check_tensors(tensors: State, expected: Mapping[str, TensorSpec], file: Path) -> None:
    """Raise DataError where a file's tensors are not those that its model needs, or not finite."""
    reason = differences(tensors, expected)
    if reason:
        raise DataError(f"does not fit its model: {reason}", where=str(file))
    broken = not_finite(tensors)
    if broken:
        raise DataError(f"{broken} is not finite", where=str(file))


def files_in(path: Path) -> dict[Path, tuple[State, Metadata]]:
    """Return the files of an exported model, the model's first. Raises DataError for a folder that is none."""
    file = path / MODEL_FILE
    if not file.is_file():
        rule = f"must be a folder that `fedskew export` wrote, and holds no {MODEL_FILE}"
        raise DataError(rule, where=str(path))
    of_sites = sorted(path.glob(site_file(Path(), "*").name))
    return {present: read(present) for present in (file, *of_sites)}


def read(path: Path) -> tuple[dict[str, Tensor], Metadata]:
    """Return a file's tensors and metadata. Raises DataError, naming the file, for one that is damaged or another's."""
    site = path.stem.removeprefix("site-")
    identity = {KIND: "model"} if path.name == MODEL_FILE else {KIND: "site", "site": site}
    try:
        return tensor_files.read(path, identity)
    except Damaged as error:
        raise DataError(str(error)) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", where=str(path)) from None
