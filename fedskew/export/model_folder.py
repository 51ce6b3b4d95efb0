"""The files of an exported model: model.safetensors with what all sites share, site-NAME.safetensors with the rest."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from client_app import tensor_files
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
from data import DataError, DataSettings, SettingError, require
from data.text import is_whole, printable
from server_app.run_settings import Scalar
from server_app.settings import parse_texts, typed
from strategies.core.validation import differences, expected_of, not_finite

FORMAT = "1"
MODEL_FILE = "model.safetensors"
Metadata = Mapping[str, str]
READ_BY = ("first_label", "pixel_range", "frame", "columns", "split_seed", "test_fold")
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
    image_side: str = "0"
    first_label: str = "0"
    pixel_range: str = ""
    frame: str = ""
    columns: str = ""
    split_seed: str = "0"
    test_fold: str = "0"
    positive_class: str = ""
    """Of two classes the one that AUPRC, sensitivity and specificity are about; empty in files of earlier versions."""

    def metadata(self) -> dict[str, str]:
        """Return the description as metadata; safetensors' convention for PyTorch is format = pt."""
        stated = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:  # a field at its default may be newer than the reader
                stated[field.name.replace("_", "-")] = str(value)
        return {
            "format": "pt",
            "fedskew-format": FORMAT,
            KIND: "model",
            **stated,
        }

    @staticmethod
    def of(metadata: Metadata, path: Path) -> "Description":
        """Undo `metadata`. Raises DataError, naming the file, when it is not what `metadata` writes."""
        if (version := metadata.get("fedskew-format")) != FORMAT:
            raise DataError(
                f"fedskew-format = {version!r:.100}: must be {FORMAT}, as `fedskew export` writes it",
                where=str(path),
            )
        keys = {field.name: field.name.replace("_", "-") for field in fields(Description)}
        usual = {
            keys[field.name]: field.default
            for field in fields(Description)
            if isinstance(field.default, str)
        }
        metadata = {**usual, **metadata}
        if missing := keys.values() - metadata.keys():
            raise DataError(f"its metadata lack {', '.join(sorted(missing))}", where=str(path))
        about = Description(**{name: metadata[key] for name, key in keys.items()})
        name = about.architecture
        if name not in MODELS and not is_backbone(name) and not is_own_model(name):
            raise DataError(
                f"metadata: architecture = {about.architecture!r:.100}: there is no such model",
                where=str(path),
            )
        try:
            channels = about.shape[0]
            mean = about.means
            std = about.stds
            _ = about.class_names, about.model_settings
        except SettingError as error:
            raise DataError(f"metadata: {error}", where=str(path)) from None
        if about.positive_class not in ("", *about.class_names):
            raise DataError(
                f"metadata: positive-class = {about.positive_class!r:.100}: is no class of the model",
                where=str(path),
            )
        if not {len(mean), len(std)} <= {1, channels} or min(std) <= 0:
            raise DataError(
                f"metadata: mean = {about.mean!r:.100}, std = {about.std!r:.100}: must fit {about.input_shape}",
                where=str(path),
            )
        return about

    @property
    def data(self) -> DataSettings:
        """The settings that inputs are read by."""
        read = parse_texts(f"{DataSettings.key(field)}={getattr(self, field)}" for field in READ_BY)
        stated = {
            "classes": self.classes,
            "input_shape": self.input_shape,
            "mean": self.mean,
            "std": self.std,
        }
        return DataSettings(**{**stated, **reading(read)})

    @property
    def model_settings(self) -> ModelSettings:
        """What is settled of the architecture beside its name."""
        if is_whole(self.image_side) and len(self.image_side) < 5:
            side = int(self.image_side)
        else:
            side = -1
        return ModelSettings(norm=self.norm, image_side=side)

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.data.class_names

    @property
    def shape(self) -> tuple[int, ...]:
        """(C, H, W), or (F,) for vectors."""
        return self.data.shape

    @property
    def means(self) -> tuple[float, ...]:
        return self.data.means

    @property
    def stds(self) -> tuple[float, ...]:
        return self.data.stds


def reading(stated: Mapping[str, Scalar]) -> dict[str, Any]:
    """Return settings of how inputs are read, by field. Raises SettingError for any other, or one of another type."""
    known = {DataSettings.key(field): field for field in (*READ_BY, "outside_folder")}
    for key, value in stated.items():
        require(
            key in known,
            key,
            value,
            f"says nothing of how inputs are read, as do {', '.join(known)}",
        )
    return {
        known[key]: typed(key, value, type(getattr(DataSettings, known[key])))
        for key, value in stated.items()
    }


class ModelFolder:
    """An exported model, checked. Raises DataError naming the file that is missing, broken, or of something else."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        """Read the folder; given `files`, the model's first, check what is going to be written there."""
        self.path, file, new = path, path / MODEL_FILE, files is not None
        if files is None:
            if not file.is_file():
                raise DataError(
                    f"must be a folder that `fedskew export` wrote, and holds no {MODEL_FILE}",
                    where=str(path),
                )
            files = {
                present: read(present)
                for present in (file, *sorted(path.glob(site_file(Path(), "*").name)))
            }
        self.shared, metadata = files[file]
        self.description = Description.of(metadata, file)
        about = self.description
        self.model = build(
            about.architecture, about.shape, len(about.class_names), 0, about.model_settings
        )
        expected = expected_of(self.model.state_dict())
        self.private = frozenset(expected.keys() - self.shared.keys())
        check(
            self.shared,
            {name: spec for name, spec in expected.items() if name not in self.private},
            file,
        )
        self.sites: dict[str, State] = {}
        self.samples: dict[str, int] = {}
        for other, (tensors, metadata) in files.items():
            if other == file:
                continue
            check(tensors, {name: expected[name] for name in self.private}, other)
            if (metadata.get("run"), metadata.get("round")) != (about.run, about.round):
                stated = printable(f"run {metadata.get('run')}, round {metadata.get('round')}")
                raise DataError(f"is of {stated}, unlike {MODEL_FILE}", where=str(other))
            if not is_whole(count := metadata.get("samples", "")):
                raise DataError(
                    f"metadata: samples = {count!r:.100}: must be a number", where=str(other)
                )
            name = other.stem.removeprefix("site-")
            self.sites[name], self.samples[name] = tensors, int(count)
        self.at_sites = bool(self.private) and not self.sites and KEPT in files[file][1]
        """Whether each site keeps its part where it is: this is then no model of its own."""
        if self.private and not self.sites and not (self.at_sites and new):
            where = "there is no site-NAME.safetensors that could hold it"
            if self.at_sites:
                where = "every site keeps its own: `fedskew-site export` joins both there"
            else:
                where = where
            raise DataError(f"{min(self.private)} is missing, and {where}", where=str(file))

    @property
    def only_batch_norm_is_private(self) -> bool:
        """Whether what sites keep is batch norm's, so that a site nobody trained with can be given some."""
        return self.private <= batch_norm_names(self.model)


def read(path: Path) -> tuple[dict[str, Tensor], Metadata]:
    """Return a file's tensors and metadata. Raises DataError, naming the file, when they are not as they were written,
    or the file is another's."""
    site = path.stem.removeprefix("site-")
    identity = {KIND: "model"} if path.name == MODEL_FILE else {KIND: "site", "site": site}
    try:
        return tensor_files.read(path, identity)
    except Damaged as error:
        raise DataError(str(error)) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", where=str(path)) from None


def check(state: State, expected: Mapping[str, tuple[tuple[int, ...], object]], path: Path) -> None:
    """Raise DataError unless the tensors have the model's names, shapes and types, and finite values."""
    reason = differences(state, expected)  # type: ignore[arg-type]
    if reason:
        raise DataError(f"does not fit its model: {reason}", where=str(path))
    name = not_finite(state)
    if name:
        raise DataError(f"{name} is not finite", where=str(path))
