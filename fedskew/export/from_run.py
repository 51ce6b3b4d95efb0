"""Export from a run's folder: the deployed model, the tensors that each site keeps, the model card, ONNX."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from client_app.memory import KEPT, MemoryLost, folder_of
from client_app.memory import load as load_memory
from client_app.models import build
from client_app.models.backbone import sha256_of
from client_app.models.settings import of_hash
from client_app.state import State, copy
from client_app.tensor_files import (
    KIND,
    Damaged,
    write_atomically,
    writing,
)
from data import DataError, DataSettings, SettingError, require
from data.private_files import owner_only
from data.readers.catalog import KNOWN
from fedskew.export.model_card import model_card
from fedskew.export.model_folder import (
    MODEL_FILE,
    READ_BY,
    Description,
    Metadata,
    ModelFolder,
    read,
    site_file,
)
from fedskew.export.onnx_file import onnx_files, require_onnx
from fedskew.formatting import site_names
from server_app.checkpoint import BrokenCheckpoint, Checkpoint, best_checkpoint
from server_app.keys import check_round
from server_app.record import ModelNumbers
from server_app.run_folder import RunFolder, why_ended_early, write_text
from strategies.core.round_result import AVERAGE

NEEDED = {"method": str, "model": str, "dataset": str, "classes": str, "input-shape": str, "mean": str, "std": str,
          "rounds": int}  # fmt: skip
"""The settings that an export is made of."""
MEND = "the run's own command mends it"


@dataclass(frozen=True)
class Site:
    """A client that keeps a part of the model."""

    name: str
    """Its domain where that is its alone, else its number, after the domain where it has one."""
    client: int
    round: int
    """Of its memory."""
    samples: int
    """Training samples; 1 where the run did not write them down."""


class TrainedRun:
    """What is exported of a run, read from its folder alone: the data need not be there."""

    def __init__(
        self,
        folder: RunFolder,
        model: str = "",
        unfinished: bool = False,
        round: str = "last",
    ) -> None:
        """Read the run's last round, or with `round` = best the one that the setting keep-best kept for the model.

        Raises DataError for a folder that holds no run, an unfinished one, or no best round that can be used, and
        SettingError for an unknown model and for the best round of a run without keep-best.
        """
        check_round("--round", round)
        self.folder = folder
        try:
            self.origin = folder.origin()
        except OSError:
            self.origin = {}
        if not self.origin:
            raise DataError(
                "is no run's folder: settings.json is missing or broken", where=str(folder.path)
            )
        self.settings: dict[str, Any] = self.origin["settings"]
        refuse_missing_settings(self.settings, folder.settings_file)
        try:
            all_records, summary = folder.rounds(), folder.summary()
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}", where=error.filename) from error
        self.checkpoint = checkpoint(folder, summary is not None)
        # A killed run can have the record of a round whose checkpoint was not written.
        records = [record for record in all_records if record.round <= self.checkpoint.round]
        is_recorded = self.checkpoint.round in {record.round for record in records}
        self.finished = is_recorded and summary is not None
        self.ended = why_ended_early(summary)
        if not self.finished and not unfinished:
            raise self.unfinished(len(records), is_recorded)
        self.model = chosen(list(self.checkpoint.deployed), model)
        self.best_by = ""
        if round == "best":
            self.checkpoint, self.best_by = self.best_round()
            records = [record for record in records if record.round == self.checkpoint.round]
        self.models: dict[str, ModelNumbers] = {}
        """By deployed model, of the last evaluated round, or of the best one."""
        for record in records:
            if record.models:
                self.models = dict(record.models)

    def best_round(self) -> tuple[Checkpoint, str]:
        """Return what is kept of the model's best round, and the metric. Raises as `__init__`."""
        metric = str(self.settings.get("keep-best", ""))
        rule = "is not there: the run has no keep-best, which keeps its best round"
        require(metric != "", "--round", "best", rule)
        where = str(self.folder.path)
        best = self.checkpoint.best.best_of(self.model)
        if best is None:
            reason = (
                f"no evaluated round of model {self.model} has a finite {metric} on validation data"
            )
            raise DataError(reason, where=where)
        try:
            return best_checkpoint(self.folder, best.round), metric
        except BrokenCheckpoint as error:
            remedy = "overwrite = true repeats the run, --round last exports its last round"
            raise DataError(f"{error}: {remedy}") from error

    def unfinished(self, records: int, is_recorded: bool) -> DataError:
        """Return the error of an unfinished run; `is_recorded` says whether the checkpoint's round has its record."""
        file = self.folder.rounds_file
        remedy = MEND
        if is_recorded:
            state = "is not finished"
            remedy = "the run's own command finishes it"
        elif file.exists():
            state = f"{file.name} is damaged after round {records}"
        else:
            state = f"{file.name} is missing"
        rounds = f"round {self.checkpoint.round} of {self.settings['rounds']}"
        reason = f"{state} ({rounds}): {remedy}, --unfinished exports it as it is"
        return DataError(reason, where=str(self.folder.path))

    @property
    def usual_folder(self) -> Path:
        """Where an export goes that names no folder; the best round does not replace the last one."""
        name = f"{self.model}-best" if self.best_by else self.model
        return self.folder.path / "export" / name

    @property
    def description(self) -> Description:
        """What the model's file says of itself."""
        settings = self.settings
        dataset = settings["dataset"]
        cropped = dataset in KNOWN and KNOWN[dataset].central
        numbers = self.models.get(self.model) or ModelNumbers()
        columns = self.origin.get("input-columns")
        medians = self.origin.get("medians")
        reading = {}
        for field in READ_BY:
            key = DataSettings.key(field)
            if key in settings:
                reading[field] = str(settings[key])
        return Description(
            run=self.folder.run,
            method=settings["method"],
            model=self.model,
            round=str(self.checkpoint.round),
            best_by=self.best_by,
            architecture=settings["model"],
            classes=settings["classes"],
            input_shape=settings["input-shape"],
            mean=self.normalization("mean"),
            std=self.normalization("std"),
            norm=settings.get("norm", "batch"),
            image_side=str(settings.get("image-side", 0)),
            width=str(settings.get("width", 0)),
            input_columns=json.dumps(columns, ensure_ascii=False) if columns else "",
            medians=json.dumps(medians, ensure_ascii=False) if medians else "",
            positive_class=numbers.positive_class or "",
            crop="center" if cropped else "none",
            **reading,
        )

    def normalization(self, key: str) -> str:
        """Return the setting mean or std; where it is empty the numbers from the training rows, which the run recorded.

        Raises DataError where they are missing.
        """
        stated: str = self.settings[key]
        if stated:
            return stated
        recorded = self.origin.get("standardization") or {}
        try:
            return ",".join(str(float(column[key])) for column in recorded["columns"])
        except (KeyError, TypeError, ValueError):
            reason = "standardization: has no mean and std of the table's columns"
            raise DataError(reason, where=str(self.folder.settings_file)) from None

    @property
    def shared(self) -> State:
        """The deployed model's tensors, but for those that sites keep; of a backbone that was frozen its file's."""
        deployed = self.checkpoint.deployed[self.model]
        settings = self.settings
        if settings.get("freeze") != "all":
            return deployed
        file = settings["weights"]
        about = self.description
        if sha256_of(file) != self.origin.get("weights-sha256"):
            raise DataError("the weights are not those that the run began with", where=str(file))
        model_settings = replace(about.model_settings, weights=file)
        model_settings = of_hash(model_settings, str(self.origin["weights-sha256"]))
        classes = len(about.class_names)
        model = build(about.architecture, about.data.shape, classes, 0, model_settings)
        return {**copy(model.state_dict()), **deployed}

    def sites(self) -> list[Site]:
        """Return the clients that have trained, by number; each may have kept something. Hospitals keep it there."""
        if "agreement" in self.origin:
            return []
        where = str(self.folder.settings_file)
        sizes = self.origin.get("samples") or {"clients": [], "train": []}
        clients, train = sizes.get("clients"), sizes.get("train")
        if not isinstance(clients, list) or not isinstance(train, list):
            raise DataError("samples: must list every client and its samples", where=where)
        if len(clients) != len(train):
            raise DataError("samples: must list every client and its samples", where=where)
        names = site_names(list(map(str, clients)))
        sites = []
        for client, round in sorted(self.checkpoint.memory_rounds.items()):
            name, samples = str(client), 1
            if client < len(names):
                name = names[client]
                samples = sum(train[client])
            if Path(name).name != name or not name.isprintable():  # it becomes a file's name
                raise DataError(f"samples: clients: {name!r}: is no name of a site", where=where)
            sites.append(Site(name, client, round, samples))
        return sites

    @property
    def kept_by_sites(self) -> dict[str, str]:
        """The metadata about the memories that hospitals keep: each one's round and digest, by which they find it."""
        names = self.origin.get("agreement", {}).get("sites", [])
        digests = self.checkpoint.digests["memory"]
        memories = {}
        for client, round in sorted(self.checkpoint.memory_rounds.items()):
            if client < len(names):
                memories[names[client]] = [round, digests.get(client, "")]
        if not memories:
            return {}
        return {KEPT: json.dumps(memories)}

    def kept(self) -> Iterator[tuple[Site, State]]:
        """Yield what each site keeps of the model; nothing where the method keeps none. Raises DataError for a loss."""
        for site in self.sites():
            digest = self.checkpoint.digests["memory"].get(site.client, "")
            folder = folder_of(self.folder.path, site.client)
            try:
                memory = load_memory(folder, site.round, self.folder.run, digest)
            except (Damaged, MemoryLost) as error:
                raise DataError(f"{error}: overwrite = true repeats the run") from None
            if "private" in memory:
                yield site, memory["private"]


def refuse_missing_settings(settings: Mapping[str, Any], file: Path) -> None:
    """Raise DataError for settings in NEEDED that a settings.json lacks, or has of another type."""
    missing = []
    for key, kind in NEEDED.items():
        if not isinstance(settings.get(key), kind):
            missing.append(key)
    if missing:
        reason = f"settings: {', '.join(missing)}: is missing or of another type"
        raise DataError(reason, where=str(file))


def checkpoint(folder: RunFolder, finished: bool) -> Checkpoint:
    """Return the run's last checkpoint. Raises DataError where there is none that can be used."""
    if not folder.checkpoint_file.is_file():
        reason = "no round of the run is finished"
        if finished:
            reason = f"{folder.checkpoint_file.name} is missing: {MEND}"
        raise DataError(reason, where=str(folder.path))
    try:
        return Checkpoint.load(folder.checkpoint_file, folder.run)
    except BrokenCheckpoint as error:
        raise DataError(f"{error}: delete it, and the run's own command makes it anew") from error


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
    tensors = model_files(run, output)
    try:
        model = ModelFolder(output, tensors)
    except DataError as error:
        reason = f"cannot be exported, as predict would refuse it: {error}"
        raise DataError(reason, where=str(run.folder.path)) from None
    if onnx:
        rule = "is not for a model that is whole at its sites alone"
        require(not model.at_sites, "--onnx", True, rule)
        require_onnx()
    card = model_card(
        run.description,
        run.origin,
        run.models,
        list(model.sites),
        run.finished,
        model.at_sites,
        run.ended,
    )
    graphs = onnx_files(model) if onnx else {}
    with owner_only():  # the card has scores; ONNX holds the weights that safetensors hold
        make_room(output)
        for file, (state, description) in tensors.items():
            write_atomically(file, state, description)
        write_text(output / "README.md", card)
        for file, graph in graphs.items():
            with writing(file):
                file.write_bytes(graph)
    return [*tensors, output / "README.md", *graphs]


def model_files(run: TrainedRun, output: Path) -> dict[Path, tuple[State, Metadata]]:
    """Return tensors and metadata of the files in a model's folder, the model's first. Raises DataError for a loss."""
    metadata = run.description.metadata() | run.kept_by_sites
    files: dict[Path, tuple[State, Metadata]] = {output / MODEL_FILE: (run.shared, metadata)}
    for site, state in run.kept():
        of_site = {
            KIND: "site",
            "site": site.name,
            "client": str(site.client),
            "samples": str(site.samples),
        }
        files[site_file(output, site.name)] = state, {**metadata, **of_site}
    return files


def model_folder(path: Path, round: str = "") -> ModelFolder:
    """Return the model in a folder of `fedskew export`, or a finished run's own model in the run's folder.

    `round` is last or best, or empty for the one that is there, of a run the last. Raises SettingError where an export
    is of the other round, else as `ModelFolder` and `TrainedRun`.
    """
    if round:
        check_round("--round", round)
    folder = RunFolder(path)
    if folder.settings_file.is_file() and not (path / MODEL_FILE).exists():
        run = TrainedRun(RunFolder(path, moved=True), round=round or "last")
        model = ModelFolder(path, model_files(run, path))
        if model.at_sites:
            rule = "holds no whole model: every site keeps a part of it where it is"
            raise DataError(rule, where=str(path))
        return model
    model = ModelFolder(path)
    of_folder = "best" if model.description.best_by else "last"
    rule = f"is not what {path} holds, which is {model.description.which_round}"
    remedy = f"`fedskew export --round {round}` writes it"
    require(round in ("", of_folder), "--round", round, rule, remedy)
    return model


def make_room(output: Path) -> None:
    """Create the folder, or delete the earlier export that it holds. Raises SettingError for anything else.

    The model's file stays until the new one replaces it, as it says that the folder holds an export; a hidden file is
    what a killed export has left. So one that is killed at any time can be repeated.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
        present = sorted(file for file in output.iterdir() if not file.name.startswith("."))
        if present:
            _, metadata = read(output / MODEL_FILE)
            if "fedskew-format" not in metadata:
                raise DataError(f"{output / MODEL_FILE}: is not one of `fedskew export`")
        for file in present:
            if file.suffix in (".safetensors", ".onnx") and file.name != MODEL_FILE:
                file.unlink()
    except DataError:
        rule = "must be empty, new, or hold an earlier export"
        raise SettingError("--output", str(output), rule) from None
    except OSError as error:
        rule = f"cannot be written: {error.strerror}"
        raise SettingError("--output", str(output), rule) from error
