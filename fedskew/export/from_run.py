"""Export from a run's folder: the deployed model, the tensors that each site keeps, the model card, ONNX."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from client_app.memory import KEPT, MemoryLost, folder_of
from client_app.memory import load as load_memory
from client_app.models import build
from client_app.models.backbone import sha256_of
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
from server_app.checkpoint import BrokenCheckpoint, Checkpoint, OtherFormat
from server_app.record import ModelNumbers
from server_app.run_folder import RunFolder, write_text
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

    def __init__(self, folder: RunFolder, model: str = "", unfinished: bool = False) -> None:
        """Raise DataError for a folder that holds no run or an unfinished one, SettingError for an unknown model."""
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
        if missing := [
            key for key in NEEDED if not isinstance(self.settings.get(key), NEEDED[key])
        ]:
            raise DataError(
                f"settings: {', '.join(missing)}: is missing or of another type",
                where=str(folder.settings_file),
            )
        try:
            records, summary = folder.rounds(), folder.summary()
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}", where=error.filename) from error
        self.checkpoint = checkpoint(folder, summary is not None)
        rounds = self.settings["rounds"]
        records = [record for record in records if record.round <= self.checkpoint.round]
        whole = self.checkpoint.round in {record.round for record in records}
        self.finished = whole and summary is not None
        if not self.finished and not unfinished:
            if folder.rounds_file.exists():
                damage = f"is damaged after round {len(records)}"
            else:
                damage = "is missing"
            state = "is not finished" if whole else f"{folder.rounds_file.name} {damage}"
            remedy = "the run's own command finishes it" if whole else MEND
            done = f"{state} (round {self.checkpoint.round} of {rounds})"
            raise DataError(
                f"{done}: {remedy}, --unfinished exports it as it is", where=str(folder.path)
            )
        self.model = chosen(list(self.checkpoint.deployed), model)
        evaluated = next((record.models for record in reversed(records) if record.models), {})
        self.models: dict[str, ModelNumbers] = dict(evaluated)
        """By deployed model, of the last evaluated round."""

    @property
    def description(self) -> Description:
        """What the model's file says of itself."""
        settings = self.settings
        dataset = settings["dataset"]
        cropped = dataset in KNOWN and KNOWN[dataset].central
        numbers = self.models.get(self.model) or ModelNumbers()
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
            architecture=settings["model"],
            classes=settings["classes"],
            input_shape=settings["input-shape"],
            mean=settings["mean"],
            std=settings["std"],
            norm=settings.get("norm", "batch"),
            image_side=str(settings.get("image-side", 0)),
            positive_class=numbers.positive_class or "",
            crop="center" if cropped else "none",
            **reading,
        )

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
        begun = replace(about.model_settings, weights=file)
        whole = build(about.architecture, about.data.shape, len(about.class_names), 0, begun)
        return {**copy(whole.state_dict()), **deployed}

    def sites(self) -> list[Site]:
        """Return the clients that have trained, by number; each may have kept something. Hospitals keep it there."""
        if "agreement" in self.origin:
            return []
        sizes = self.origin.get("samples") or {"clients": [], "train": []}
        clients, train = sizes.get("clients"), sizes.get("train")
        if (
            not isinstance(clients, list)
            or not isinstance(train, list)
            or len(clients) != len(train)
        ):
            raise DataError(
                "samples: must list every client and its samples",
                where=str(self.folder.settings_file),
            )
        names = site_names(list(map(str, clients)))
        sites = []
        for client, round in sorted(self.checkpoint.memory_rounds.items()):
            name, samples = (
                (names[client], sum(train[client])) if client < len(names) else (str(client), 1)
            )
            if Path(name).name != name or not name.isprintable():  # a file is going to be called so
                raise DataError(
                    f"samples: clients: {name!r}: is no name of a site",
                    where=str(self.folder.settings_file),
                )
            sites.append(Site(name, client, round, samples))
        return sites

    @property
    def kept_by_sites(self) -> dict[str, str]:
        """Return what the model's file says of the memory that hospitals keep, by which they make it whole."""
        names = self.origin.get("agreement", {}).get("sites", [])
        digests = self.checkpoint.digests["memory"]
        rounds = {
            client: round
            for client, round in self.checkpoint.memory_rounds.items()
            if client < len(names)
        }
        known = {
            names[client]: [round, digests.get(client, "")]
            for client, round in sorted(rounds.items())
        }
        return {KEPT: json.dumps(known)} if known else {}

    def kept(self) -> Iterator[tuple[Site, State]]:
        """Yield what each site keeps of the model; nothing where the method keeps none. Raises DataError for a loss."""
        for site in self.sites():
            try:
                known = self.checkpoint.digests["memory"].get(site.client, "")
                memory = load_memory(
                    folder_of(self.folder.path, site.client), site.round, self.folder.run, known
                )
            except (Damaged, MemoryLost) as error:
                raise DataError(f"{error}: overwrite = true repeats the run") from None
            if "private" in memory:
                yield site, memory["private"]


def checkpoint(folder: RunFolder, finished: bool) -> Checkpoint:
    """Return the run's last checkpoint. Raises DataError where there is none that can be used."""
    if not folder.checkpoint_file.is_file():
        lost = f"{folder.checkpoint_file.name} is missing: {MEND}"
        raise DataError(
            f"{lost if finished else 'no round of the run is finished'}", where=str(folder.path)
        )
    try:
        return Checkpoint.load(folder.checkpoint_file, folder.run)
    except BrokenCheckpoint as error:
        if isinstance(error, OtherFormat):
            remedy = ""
        else:
            remedy = ": delete it, and the run's own command makes it anew"
        raise DataError(f"{error}{remedy}") from error


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
    metadata = run.description.metadata() | run.kept_by_sites
    sites = []
    tensors: dict[Path, tuple[State, Metadata]] = {output / MODEL_FILE: (run.shared, metadata)}
    for site, state in run.kept():
        of_site = {
            KIND: "site",
            "site": site.name,
            "client": str(site.client),
            "samples": str(site.samples),
        }
        tensors[site_file(output, site.name)] = state, {**metadata, **of_site}
        sites.append(site.name)
    try:
        model = ModelFolder(output, tensors)
    except DataError as error:
        raise DataError(
            f"cannot be exported, as predict would refuse it: {error}", where=str(run.folder.path)
        ) from None
    if onnx:
        require(
            not model.at_sites,
            "--onnx",
            True,
            "is not for a model that is whole at its sites alone",
        )
        require_onnx()
    card = model_card(run.description, run.origin, run.models, sites, run.finished, model.at_sites)
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


def make_room(output: Path) -> None:
    """Create the folder, or delete the earlier export that it holds. Raises SettingError for anything else.

    The model's file stays until the new one replaces it, as it says that the folder holds an export; a hidden file is
    what a killed export has left. So one that is killed at any time can be repeated.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
        present = sorted(file for file in output.iterdir() if not file.name.startswith("."))
        if present and "fedskew-format" not in read(output / MODEL_FILE)[1]:
            raise DataError(f"{output / MODEL_FILE}: is not one of `fedskew export`")
        for file in present:
            if file.suffix in (".safetensors", ".onnx") and file.name != MODEL_FILE:
                file.unlink()
    except DataError:
        raise SettingError(
            "--output", str(output), "must be empty, new, or hold an earlier export"
        ) from None
    except OSError as error:
        raise SettingError(
            "--output", str(output), f"cannot be written: {error.strerror}"
        ) from error
