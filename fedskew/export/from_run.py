"""Export from a run's folder: the deployed model, the tensors that each site keeps, the model card, ONNX."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from torch import Tensor, nn

from client_app.memory import KEPT, MemoryLost, folder_of
from client_app.memory import load as load_memory
from client_app.models import Classifier, build
from client_app.models.backbone import sha256_of
from client_app.models.settings import of_hash
from client_app.state import State, copy
from client_app.tensor_files import KIND, Damaged, write_atomically, writing
from data import DataError, DataSettings, SettingError, require
from data.files import owner_only
from data.readers.catalog import IMAGENET_LT, is_own, members
from fedskew.export.model_folder import (
    MODEL_FILE,
    READ_BY,
    Description,
    Files,
    ModelFolder,
    read,
    site_file,
)
from fedskew.formatting import escaped, percent, site_names
from server_app.checkpoint import BrokenCheckpoint, Checkpoint
from server_app.composition import compose, row_name
from server_app.plugins import find
from server_app.record import ModelNumbers
from server_app.run_folder import RunFolder, divergence_words, write_text
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS
from strategies.core.server import AVERAGE

ONNX_PACKAGES = ("onnx", "onnxscript")
"""What torch.onnx needs to write a file."""
SHOWN = {
    "balanced-accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "macro-f1": "macro-F1",
    "calibration-error": "calibration error",
}
"""The numbers of the card's table, by their key in a record."""


class TrainedRun:
    """What is exported of a run, read from its folder alone: the data need not be there."""

    def __init__(self, folder: RunFolder, model: str = "", unfinished: bool = False) -> None:
        """Read the run's last round.

        Raises DataError for a folder that holds no run, or an unfinished one, and SettingError for an unknown model.
        """
        self.folder = folder
        where = str(folder.path)
        self.origin = folder.origin()
        if not self.origin:
            raise DataError("is no run's folder: settings.json is missing or broken", where=where)
        self.settings: dict[str, Any] = self.origin["settings"]
        for key in ("components", "hidden"):
            value = self.settings.get(key, 0)
            require(not value, key, value, "is for experiments: such a model is not exported")
        summary, divergence = folder.summary(), folder.divergence()
        try:
            self.checkpoint = Checkpoint.load(folder.checkpoint_file, folder.run)
        except (FileNotFoundError, BrokenCheckpoint) as error:
            if divergence is not None:
                rule = f"{divergence_words(divergence)}: no round before it can be exported"
                raise DataError(rule, where=where) from error
            remedy = "delete what is damaged, and the run's own command makes it anew"
            raise DataError(f"{error}: {remedy}") from error
        # A killed run can have the record of a round whose checkpoint was not written.
        last = self.checkpoint.round
        records = [record for record in folder.rounds() if record.round <= last]
        is_recorded = bool(records) and records[-1].round == last
        self.finished = is_recorded and summary is not None
        if not self.finished and not unfinished:
            state = "is not finished"
            if not is_recorded:
                state = f"lacks records in {folder.rounds_file.name}"
            remedy = "the run's own command mends it, --unfinished exports it as it is"
            found = f"{state} (round {last} of {self.settings['rounds']})"
            if divergence is not None:
                found = divergence_words(divergence)
                remedy = f"--unfinished exports it after round {last}"
            raise DataError(f"{found}: {remedy}", where=where)

        self.model = chosen(list(self.checkpoint.deployed), model)
        self.models: dict[str, ModelNumbers] = {}
        """By deployed model, of the last evaluated round."""
        for record in records:
            self.models = dict(record.models) or self.models

    @property
    def usual_folder(self) -> Path:
        """Where an export goes that names no folder."""
        return self.folder.path / "export" / self.model

    @property
    def description(self) -> Description:
        """What the model's file says of itself."""
        settings = self.settings
        dataset = settings["dataset"]
        cropped = dataset == IMAGENET_LT
        numbers = self.models.get(self.model) or ModelNumbers()
        # Empty where the training rows decided, of whose columns the run recorded the numbers.
        columns = self.origin.get("standardization", {}).get("columns", [])
        scale = {
            key: ",".join(str(float(column[key])) for column in columns) for key in ("mean", "std")
        }
        return Description(
            run=self.folder.run,
            method=settings["method"],
            model=self.model,
            round=str(self.checkpoint.round),
            architecture=settings["model"],
            classes=settings["classes"],
            input_shape=settings["input-shape"],
            mean=settings["mean"] or scale["mean"],
            std=settings["std"] or scale["std"],
            norm=settings["norm"],
            image_side=settings["image-side"],
            input_columns=tuple(self.origin.get("input-columns", ())),
            medians=tuple(self.origin.get("medians", {}).values()),
            positive_class=numbers.positive_class or "",
            crop="center" if cropped else "none",
            **{field: settings[DataSettings.key(field)] for field in READ_BY},
        )

    @property
    def shared(self) -> State:
        """The deployed model's tensors, but for those that sites keep; of a backbone that was frozen its file's."""
        deployed = self.checkpoint.deployed[self.model]
        if self.settings["freeze"] != "all":
            return deployed
        file = self.settings["weights"]
        about = self.description
        expected = str(self.origin["weights-sha256"])
        if sha256_of(file) != expected:
            raise DataError("the weights are not those that the run began with", where=str(file))
        settings = of_hash(replace(about.model_settings, weights=file), expected)
        model = build(about.architecture, about.shape, len(about.class_names), 0, settings)
        return {**copy(model.state_dict()), **deployed}

    def files(self, output: Path) -> Files:
        """Return tensors and metadata of the files in a model's folder, the model's first.

        Sites of a simulation have a file each of what they keep. A hospital keeps it where it is: the metadata then
        have the round and the digest of its memory, by which it is found there.

        Raises:
            DataError: a site's memory is lost or damaged, or a site has a name that no file can have.
        """
        metadata = self.description.metadata()
        rounds = sorted(self.checkpoint.memory_rounds.items())
        states = self.checkpoint.client_states
        if "agreement" in self.origin:
            names = self.origin["agreement"]["sites"]
            kept = {
                names[client]: (round, states[client].memory)
                for client, round in rounds
                if client < len(names)
            }
            if kept:
                metadata[KEPT] = json.dumps(kept)
        files = {output / MODEL_FILE: (self.shared, metadata)}
        if "agreement" in self.origin:
            return files
        # Runs of more than 100 clients or classes do not record them.
        samples = self.origin.get("samples") or {"clients": [], "train": []}
        names = site_names(samples["clients"])
        for client, round in rounds:
            name, count = str(client), 1
            if client < len(names):
                name, count = names[client], sum(samples["train"][client])
            if Path(name).name != name or not name.isprintable():
                rule = f"samples: clients: {name!r}: is no name of a site"
                raise DataError(rule, where=str(self.folder.settings_file))
            memory_folder = folder_of(self.folder.path, client)
            try:
                memory = load_memory(memory_folder, round, self.folder.run, states[client].memory)
            except (Damaged, MemoryLost) as error:
                raise DataError(f"{error}: overwrite = true repeats the run") from None
            if "private" in memory:
                of_site = {KIND: "site", "site": name, "client": str(client), "samples": str(count)}
                files[site_file(output, name)] = memory["private"], {**metadata, **of_site}
        return files


def chosen(deployed: list[str], model: str) -> str:
    """Return the model that is asked for, or the only one beside the average, or the average where it is alone."""
    rule = f"must be one of the run's deployed models: {', '.join(deployed)}"
    if model:
        require(model in deployed, "--model", model, rule)
        return model
    special = [name for name in deployed if name != AVERAGE]
    require(len(special) <= 1, "--model", model, rule)
    return special[0] if special else AVERAGE


def export(run: TrainedRun, output: Path, onnx: bool = False) -> list[Path]:
    """Write the model's folder and return its files, the model first; an earlier export there is replaced.

    Everything is there and checked before the first file is written. Raises DataError for a run of which something is
    lost or damaged, SettingError for a folder with anything else in it, or for ONNX where its packages are missing.
    """
    tensors = run.files(output)
    try:
        model = ModelFolder(output, tensors)
    except DataError as error:
        reason = f"cannot be exported, as predict would refuse it: {error}"
        raise DataError(reason, where=str(run.folder.path)) from None
    graph = b""
    if onnx:
        rule = "is for a model that is the same at every site"
        require(not model.private, "--onnx", True, rule)
        require_onnx()
        graph = onnx_graph(model)
    files = [*tensors, output / "README.md"]
    card = model_card(run, model)
    with owner_only():  # the card has scores; ONNX holds the weights that safetensors hold
        make_room(output)
        for file, (state, description) in tensors.items():
            write_atomically(file, state, description)
        write_text(output / "README.md", card)
        if graph:
            files.append(output / "model.onnx")
            with writing(files[-1]):
                files[-1].write_bytes(graph)
    return files


def make_room(output: Path) -> None:
    """Create the folder, or delete the earlier export that it holds. Raises SettingError for anything else.

    The model's file stays until the new one replaces it, as it says that the folder holds an export; a hidden file is
    what a killed export has left. So one that is killed at any time can be repeated.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
        present = [file for file in output.iterdir() if not file.name.startswith(".")]
        is_export = not present or KIND in read(output / MODEL_FILE)[1]
    except DataError:
        is_export = False
    except OSError as error:
        rule = f"cannot be written: {error.strerror}"
        raise SettingError("--output", str(output), rule) from error
    require(is_export, "--output", str(output), "must be empty, new, or hold an earlier export")
    for file in present:
        if file.suffix in (".safetensors", ".onnx") and file.name != MODEL_FILE:
            file.unlink()


# ---- ONNX ------------------------------------------------------------------------------------------------------------


def require_onnx() -> None:
    """Raise SettingError when a package is missing."""
    missing = [name for name in ONNX_PACKAGES if find_spec(name) is None]
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


def onnx_graph(folder: ModelFolder) -> bytes:
    """Return the content of model.onnx: the input `pixels` is (B, *shape), float32; the output `logits` (B, C)."""
    about = folder.description
    folder.model.load_state_dict(folder.shared)
    program = torch.onnx.export(
        FromPixels(folder.model, *about.scale()).eval(),
        (torch.zeros(2, *about.shape),),
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
    graph: bytes = program.model_proto.SerializeToString()
    return graph


# ---- the model card --------------------------------------------------------------------------------------------------


def model_card(run: TrainedRun, folder: ModelFolder) -> str:
    """Return the README.md of an exported model as Markdown, in the usual form of a model card."""
    about, origin = run.description, run.origin
    names = about.method.split("+")
    data = data_names(origin)
    samples = origin.get("samples")
    by_class = (
        [sum(counts_K) for counts_K in zip(*samples["train"], strict=True)] if samples else []
    )
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown
    )
    templates.filters |= {"percent": percent, "text": escaped, "shell": shlex.quote}

    # Settings that can change numbers, without the paths of a machine.
    settings = {**origin["settings"], "dataset": ", ".join(data)}
    settings["partition-file"] = Path(settings["partition-file"]).name
    for key in WITHOUT_EFFECT_ON_NUMBERS:
        settings.pop(key, None)

    is_table = len(about.shape) == 1
    front = {
        "library_name": "fedskew",
        "pipeline_tag": "tabular-classification" if is_table else "image-classification",
        "tags": ["federated-learning", "flower", *names],
        "datasets": data,
    }
    return templates.get_template("model_card.md").render(
        front=yaml.safe_dump(front, sort_keys=False, allow_unicode=True).strip(),
        about=about,
        origin=origin,
        models=run.models,
        classes=about.class_names,
        data=data,
        methods=[find(name) for name in names],
        rows={name: row_name(compose(about.method), name) for name in [about.model, *run.models]},
        samples=samples,
        by_class=by_class,
        settings=settings,
        tested=settings["evaluate-on"],
        shown=SHOWN,
        sites=list(folder.sites),
        at_sites=folder.at_sites,
        finished=run.finished,
        vectors=is_table,
    )


def data_names(origin: Mapping[str, Any]) -> list[str]:
    """Return the names of the data sets: of the user's own data the file's name, as its path is private.

    Between sites it is the federation's name.
    """
    agreement = origin.get("agreement")
    if agreement:
        return [f"sites-{agreement['name']}"]
    names = members(origin["settings"]["dataset"])
    return [Path(name.partition(":")[2]).stem if is_own(name) else name for name in names]
