"""The files of an exported model: model.safetensors with what all sites share, site-NAME.safetensors with the rest."""

import json
import math
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
from data.readers.medians import column_labels
from data.text import is_whole, printable
from server_app.best_round import METRICS
from server_app.keys import typed
from server_app.run_settings import Scalar
from server_app.settings import parse_texts
from strategies.core.validation import differences, expected_of, not_finite

FORMAT = "1"
MODEL_FILE = "model.safetensors"
Metadata = Mapping[str, str]
READ_BY = (
    "first_label",
    "pixel_range",
    "frame",
    "columns",
    "missing",
    "split_seed",
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
    image_side: str = "0"
    width: str = "0"
    first_label: str = "0"
    pixel_range: str = ""
    frame: str = ""
    columns: str = ""
    missing: str = "refuse"
    split_seed: str = "0"
    test_fold: str = "0"
    input_columns: str = ""
    """A JSON list of the names of a table's input columns in order; empty for images, and where nothing names them."""
    medians: str = ""
    """A JSON object with the median of each input column's training rows, by name (number from 1 without names); empty
    unless `missing = median` filled gaps in one table."""
    positive_class: str = ""
    """Of two classes the one that AUPRC, sensitivity and specificity are about; empty in files of earlier versions."""
    best_by: str = ""
    """The metric by which the round was the run's best one on validation data; empty for its last round."""

    @property
    def which_round(self) -> str:
        """Which of the run's rounds the model is from, in words."""
        if self.best_by:
            return f"round {self.round}, the best by {self.best_by} on validation data"
        return f"round {self.round}, the last"

    def metadata(self) -> dict[str, str]:
        """Return the description as metadata; safetensors' convention for PyTorch is format = pt."""
        metadata = {"format": "pt", "fedskew-format": FORMAT, KIND: "model"}
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:  # a field at its default may be newer than the reader
                metadata[field.name.replace("_", "-")] = str(value)
        return metadata

    @staticmethod
    def of(metadata: Metadata, path: Path) -> "Description":
        """Undo `metadata`. Raises DataError, naming the file, when it is not what `metadata` writes."""
        where = str(path)
        version = metadata.get("fedskew-format")
        if version != FORMAT:
            rule = f"must be {FORMAT}, as `fedskew export` writes it"
            raise DataError(f"fedskew-format = {version!r:.100}: {rule}", where=where)
        values: dict[str, str] = {}
        missing = []
        for field in fields(Description):
            key = field.name.replace("_", "-")
            if key in metadata:
                values[field.name] = metadata[key]
            elif not isinstance(field.default, str):
                missing.append(key)
        if missing:
            raise DataError(f"its metadata lack {', '.join(sorted(missing))}", where=where)
        about = Description(**values)
        about.check(where)
        return about

    def check(self, where: str) -> None:
        """Raise DataError for an unknown architecture, and for values that are not valid or contradict each other."""
        name = self.architecture
        if name not in MODELS and not is_backbone(name) and not is_own_model(name):
            reason = f"metadata: architecture = {name!r:.100}: there is no such model"
            raise DataError(reason, where=where)
        try:
            channels = self.shape[0]
            mean = self.means
            std = self.stds
            classes = self.class_names
            _ = self.model_settings
        except SettingError as error:
            raise DataError(f"metadata: {error}", where=where) from None
        self.check_columns(where)
        self.check_medians(where)
        if self.best_by not in ("", *METRICS):
            reason = f"metadata: best-by = {self.best_by!r:.100}: is no metric that a run keeps"
            raise DataError(reason, where=where)
        if self.positive_class not in ("", *classes):
            positive = f"positive-class = {self.positive_class!r:.100}"
            raise DataError(f"metadata: {positive}: is no class of the model", where=where)
        if not {len(mean), len(std)} <= {1, channels} or min(std) <= 0:
            scale = f"mean = {self.mean!r:.100}, std = {self.std!r:.100}"
            raise DataError(f"metadata: {scale}: must fit {self.input_shape}", where=where)

    def check_columns(self, where: str) -> None:
        """Raise DataError where the names of the input columns are no names, or not one per input."""
        reason = "metadata: input-columns: must be a list of different names, one per input column"
        try:
            names = json.loads(self.input_columns or "[]")
        except (ValueError, RecursionError):
            raise DataError(reason, where=where) from None
        are_texts = type(names) is list and all(type(name) is str for name in names)
        if not are_texts or (names and self.shape != (len(set(names)),)):
            raise DataError(reason, where=where)

    def check_medians(self, where: str) -> None:
        """Raise DataError where the medians are not one finite number per input column."""
        try:
            medians = json.loads(self.medians or "{}")
        except (ValueError, RecursionError):
            medians = None
        numbers: list[Any] = list(medians.values()) if type(medians) is dict else [None]
        are_finite = all(type(value) in (int, float) and math.isfinite(value) for value in numbers)
        names = set(column_labels(self.column_names, self.shape[0]))
        if not are_finite or (medians and (len(self.shape) != 1 or medians.keys() != names)):
            reason = "metadata: medians: must be one finite number per input column, by its name"
            raise DataError(reason, where=where)

    @property
    def data(self) -> DataSettings:
        """The settings that inputs are read by."""
        texts = [f"{DataSettings.key(field)}={getattr(self, field)}" for field in READ_BY]
        return DataSettings(
            classes=self.classes,
            input_shape=self.input_shape,
            mean=self.mean,
            std=self.std,
            **reading(parse_texts(texts)),
        )

    @property
    def model_settings(self) -> ModelSettings:
        """The settings of the architecture."""

        def number(text: str) -> int:
            is_number = is_whole(text) and len(text) <= 5
            return int(text) if is_number else -1  # which ModelSettings refuses

        return ModelSettings(
            norm=self.norm,
            image_side=number(self.image_side),
            width=number(self.width),
        )

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of a table's input columns in order; empty where there are none."""
        return tuple(json.loads(self.input_columns or "[]"))

    @property
    def median_of(self) -> dict[str, float]:
        """The medians by column; empty where the model keeps none."""
        return {name: float(value) for name, value in json.loads(self.medians or "{}").items()}

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


def reading(settings: Mapping[str, Scalar]) -> dict[str, Any]:
    """Return settings of how inputs are read, by field. Raises SettingError for any other, or one of another type."""
    known = {DataSettings.key(field): field for field in (*READ_BY, "outside_folder", "labels")}
    rule = f"says nothing of how inputs are read, as do {', '.join(known)}"
    for key, value in settings.items():
        require(key in known, key, value, rule)
    values = {}
    for key, value in settings.items():
        field = known[key]
        default = getattr(DataSettings, field)
        values[field] = typed(key, value, type(default))
    return values


class ModelFolder:
    """An exported model, checked. Raises DataError naming the file that is missing, broken, or of something else."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        """Read the folder; given `files`, the model's first, check what is going to be written there."""
        self.path = path
        file = path / MODEL_FILE
        is_new = files is not None
        if files is None:
            files = files_of(path)
        self.shared, metadata = files[file]
        self.description = Description.of(metadata, file)
        about = self.description
        classes = len(about.class_names)
        self.model = build(about.architecture, about.shape, classes, 0, about.model_settings)
        expected = expected_of(self.model.state_dict())
        self.private = frozenset(expected.keys() - self.shared.keys())
        shared = {name: spec for name, spec in expected.items() if name not in self.private}
        check(self.shared, shared, file)
        private = {name: expected[name] for name in self.private}
        self.sites: dict[str, State] = {}
        self.samples: dict[str, int] = {}
        for other, (tensors, of_site) in files.items():
            if other == file:
                continue
            check(tensors, private, other)
            name = other.stem.removeprefix("site-")
            self.sites[name] = tensors
            self.samples[name] = samples_of_site(of_site, about, other)
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


def files_of(folder: Path) -> Files:
    """Return the tensors and metadata of all files, the model's first. Raises DataError for a folder without."""
    file = folder / MODEL_FILE
    if not file.is_file():
        rule = f"must be a folder that `fedskew export` wrote, and holds no {MODEL_FILE}"
        raise DataError(rule, where=str(folder))
    of_sites = sorted(folder.glob(site_file(Path(), "*").name))
    return {present: read(present) for present in (file, *of_sites)}


def samples_of_site(metadata: Metadata, about: Description, path: Path) -> int:
    """Return the training samples that a site's file names. Raises DataError for the file of another run or round."""
    run = metadata.get("run")
    round = metadata.get("round")
    if (run, round) != (about.run, about.round):
        other = printable(f"run {run}, round {round}")
        raise DataError(f"is of {other}, unlike {MODEL_FILE}", where=str(path))
    count = metadata.get("samples", "")
    if not is_whole(count):
        raise DataError(f"metadata: samples = {count!r:.100}: must be a number", where=str(path))
    return int(count)


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


def check(state: State, expected: Mapping[str, tuple[tuple[int, ...], object]], path: Path) -> None:
    """Raise DataError unless the tensors have the model's names, shapes and types, and finite values."""
    reason = differences(state, expected)  # type: ignore[arg-type]
    if reason:
        raise DataError(f"does not fit its model: {reason}", where=str(path))
    name = not_finite(state)
    if name:
        raise DataError(f"{name} is not finite", where=str(path))
