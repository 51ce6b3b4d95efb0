"""Every reader of files, and what becomes of changed ones.

Other but plausible is what no reader can tell from a genuine file: an image, an npz, idx or YAML file, a partition
written by hand, or a stranger's description of a model, that keeps every rule of its kind and says something else. All
that FedSkew itself writes has a checksum.
"""

import builtins
import io
import json
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Subject, Tally, altered, fuzz, mutated
from hypothesis import strategies as st
from PIL import Image
from site_subjects import site_subjects

from client_app.memory import MemoryLost, file_of, folder_of
from client_app.memory import load as load_memory
from client_app.memory import save as save_memory
from client_app.models import batch_norm_names, build
from client_app.state import digest
from client_app.tensor_files import Damaged, write_atomically
from data import DataError, DataSettings, SettingError, load
from data.partition_files import SavedPartition, read, save
from data.readers import cache
from data.readers.images import open_image
from data.readers.named import read_named
from data.readers.npz import read_npz
from data.readers.splits import Raw, checked
from fedskew.experiments.experiments import load_experiments, load_suites
from fedskew.experiments.plan import plan
from fedskew.export.model_folder import MODEL_FILE, Description, ModelFolder, site_file
from server_app.checkpoint import BrokenCheckpoint, Checkpoint
from server_app.record import ModelNumbers, RoundRecord
from server_app.run_folder import RunFolder

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 4, 4), np.uint8)
LABELS = np.array([0, 1, 0, 1, 1, 0])
DATA = (DataError, SettingError)
FEW = 1
"""Subjects that have few changes in all: another's memory."""


def write(file: Path, content: bytes) -> Path:
    """Write a file and the folders above it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def written_by(save_to: Callable[[Path], Any]) -> bytes:
    """Return what `save_to` writes into a file."""
    with tempfile.TemporaryDirectory() as folder:
        save_to(Path(folder) / "file")
        return (Path(folder) / "file").read_bytes()


def arrays_of(raw: Raw) -> list[Any]:
    """Return both splits as lists, checked as in training."""
    splits = [checked(split, (1, 4, 4), 2) for split in (raw.train, raw.test)]
    return [
        (inputs.dtype.str, np.asarray(inputs).tolist(), labels.tolist())
        for inputs, labels in splits
    ]


def well_formed(splits: list[Any]) -> bool:
    """Return whether images and labels are such as a model of two classes can be trained on."""
    return all(
        np.array(inputs).shape == (len(labels), 1, 4, 4)
        and np.isfinite(inputs).all()
        and {*labels} <= {0, 1}
        for _, inputs, labels in splits
    )


def data_subject(
    name: str, changed: Any, genuine: Any, read_raw: Callable[[Any, Path], Raw]
) -> Subject:
    """Return the subject of one kind of data file."""

    def read_arrays(arrived: Any, folder: Path) -> list[Any]:
        return arrays_of(read_raw(arrived, folder))

    with tempfile.TemporaryDirectory() as folder:
        expected = read_arrays(genuine, Path(folder))
    return Subject(name, changed, read_arrays, expected, DATA, well_formed)


class Payload:
    """What a pickle would execute."""

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("__import__('builtins').__dict__.update(executed=True)",)


def npz_subjects() -> list[Subject]:
    """An npz file with changed bytes, and one whose members were changed before they were packed."""

    def npy(array: Any) -> bytes:
        file = io.BytesIO()
        np.save(file, array, allow_pickle=True)
        return file.getvalue()

    def packed(members: dict[str, bytes]) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(zipfile.ZipInfo(f"{name}.npy"), content)
        return file.getvalue()

    whole = {f"{key}_{part}": npy(array) for key in ("train", "test")
             for part, array in (("images", PIXELS), ("labels", LABELS))}  # fmt: skip
    hostile = [npy(np.array([Payload()], object)), npy(np.zeros((6, 4, 4)))]

    def read_raw(arrived: bytes, folder: Path) -> Raw:
        try:
            return read_npz(write(folder / "own.npz", arrived), DataSettings())
        finally:
            assert not hasattr(builtins, "executed"), "a pickle of the file was executed"

    member = st.sampled_from(sorted(whole)).flatmap(
        lambda name: st.tuples(st.just(name), mutated(whole[name]) | st.sampled_from(hostile))
    )
    inside = member.map(lambda change: packed({**whole, change[0]: change[1]}))
    return [
        data_subject("npz", mutated(packed(whole)), packed(whole), read_raw),
        data_subject("npz, members", inside, packed(whole), read_raw),
    ]


def idx_subject() -> Subject:
    """MNIST's four files, of which one is changed."""
    images = struct.pack(">IIII", 0x803, 6, 4, 4) + PIXELS.tobytes()
    labels = struct.pack(">II", 0x801, 6) + LABELS.astype(np.uint8).tobytes()
    names = {"train-images-idx3-ubyte": images, "train-labels-idx1-ubyte": labels,
             "t10k-images-idx3-ubyte": images, "t10k-labels-idx1-ubyte": labels}  # fmt: skip

    def read_raw(arrived: dict[str, bytes], folder: Path) -> Raw:
        for name, content in arrived.items():
            write(folder / "MNIST" / "raw" / name, content)
        return read_named("mnist", DataSettings("mnist", str(folder)), (1, 4, 4))

    changed = st.sampled_from(sorted(names)).flatmap(
        lambda name: mutated(names[name]).map(lambda c: {**names, name: c})
    )
    return data_subject("idx", changed, names, read_raw)


def image_subjects() -> list[Subject]:
    """Images of five formats."""

    def of(kind: str) -> Subject:
        file = io.BytesIO()
        Image.fromarray(np.kron(PIXELS[0], np.ones((5, 5), np.uint8))).save(file, kind)

        def read_image(arrived: bytes, folder: Path) -> Any:
            return open_image(write(folder / f"image.{kind}", arrived), 1, (4, 4)).tolist()

        with tempfile.TemporaryDirectory() as folder:
            genuine = read_image(file.getvalue(), Path(folder))
        plausible = lambda pixels: np.array(pixels).shape == (4, 4, 1)  # noqa: E731
        return Subject(
            f"image, {kind}", mutated(file.getvalue()), read_image, genuine, DATA, plausible
        )

    return [of(kind) for kind in ("png", "jpeg", "gif", "webp", "tiff")]


def cache_subject(root: Path) -> Subject:
    """A file of the cached copy of a data set, which is made anew from its source; that lies in `root`."""
    np.savez(
        root / "own.npz",
        train_images=PIXELS,
        train_labels=LABELS,
        test_images=PIXELS,
        test_labels=LABELS,
    )
    settings = DataSettings(
        f"npz:{root / 'own.npz'}", classes="2", input_shape="1x4x4", cache=str(root / "cache")
    )
    load(settings)
    (copy,) = (root / "cache").iterdir()
    files = {file.name: file.read_bytes() for file in sorted(copy.iterdir())}

    def read_copy(arrived: tuple[str, bytes], folder: Path) -> Any:
        shutil.rmtree(folder / "cache", ignore_errors=True)
        shutil.copytree(copy, folder / "cache" / copy.name)
        write(folder / "cache" / copy.name / arrived[0], arrived[1])
        cache._verified.clear()  # as in a process that begins
        dataset = load(replace(settings, cache=str(folder / "cache")))
        return (
            dataset.content,
            dataset.train_inputs.tolist(),
            dataset.test_labels.tolist(),
            dataset.train_labels.tolist(),
        )

    changed = st.sampled_from(sorted(files)).flatmap(
        lambda name: st.tuples(st.just(name), mutated(files[name]))
    )
    genuine = read_copy(("dataset.json", files["dataset.json"]), root / "genuine")
    return Subject("cache", changed, read_copy, genuine, DATA)


def partition_subjects() -> list[Subject]:
    """A partition file with changed bytes, and one written by hand, so without a checksum, with changed contents."""
    partition = SavedPartition(
        "a" * 64, tuple(np.arange(9).reshape(3, 3)), np.arange(5), (0, 1, 0), np.array([9, 10])
    )
    whole = written_by(lambda file: save(file, partition))
    tree = {key: value for key, value in json.loads(whole).items() if key != "checksum"}

    def read_file(arrived: bytes, folder: Path) -> Any:
        partition = read(str(write(folder / "partition.json", arrived)))
        parts = [part.tolist() for part in (*partition.train, partition.test, partition.holdout)]
        return partition.content, parts, partition.domains

    def plausible(result: Any) -> bool:
        *train, test, holdout = result[1]
        held = [*holdout, *(number for part in train for number in part)]
        whole_numbers = all(type(number) is int for number in (*held, *test, *(result[2] or ())))
        return (
            whole_numbers and all(train) and all(len({*part}) == len(part) for part in (held, test))
        )

    with tempfile.TemporaryDirectory() as folder:
        genuine = read_file(whole, Path(folder))
    by_hand = altered(tree).map(lambda changed: json.dumps(changed).encode())
    return [
        Subject("partition file", mutated(whole), read_file, genuine, DATA),
        Subject("partition file, by hand", by_hand, read_file, genuine, DATA, plausible),
    ]


EXPERIMENTS: dict[str, Any] = {
    ".lent": {"rounds": 3},
    "table": {
        "title": "A table", "paper": "Table 1", "settings": {"clients": 4, "alpha": 0.5}, "assumed": {"momentum": 0.0},
        "methods": ["fedavg", {"FedProx": {"method": "fedprox", "proximal.mu": 0.1}}, "creff"], "seeds": [0, 1],
        "columns": {"IF 10": {"imbalance-factor": 10}, "IF 1": None}, "metrics": {"IF 1": "accuracy"},
        "cells": {"fedavg": [50.5, None]}, "notes": {"fedavg, IF 10": "read off"}, "series": ["loss"],
        "claims": [{"says": "more", "better": "creff", "than": "fedavg", "by": 1, "columns": ["IF 10"]}],
        "unjudged": ["a look"], "selection": "last", "metric": "balanced-accuracy",
    },
    "both": {"title": "All", "experiments": ["table"]},
}  # fmt: skip


def experiments_subjects() -> list[Subject]:
    """A file of experiments with changed bytes, and one with changed contents."""
    import yaml

    def read_file(arrived: bytes, folder: Path) -> Any:
        file = write(folder / "experiments.yaml", arrived)
        known, suites = load_experiments(file), load_suites(file)
        cells = [plan(experiment) for experiment in known.values()]
        return (
            known,
            suites,
            [[(cell.row, cell.column, cell.run.run_id) for cell in group] for group in cells],
        )

    whole = yaml.safe_dump(EXPERIMENTS, sort_keys=False).encode()
    with tempfile.TemporaryDirectory() as folder:
        genuine = read_file(whole, Path(folder))
    by_hand = altered(EXPERIMENTS).map(lambda changed: yaml.safe_dump(changed).encode())
    read_whole = lambda result: True  # noqa: E731  whatever is read has been parsed to settings, each within its rules
    return [
        Subject("experiments.yaml", mutated(whole), read_file, genuine, DATA, read_whole),
        Subject("experiments.yaml, contents", by_hand, read_file, genuine, DATA, read_whole),
    ]


def model_subjects() -> list[Subject]:
    """An exported model with changed bytes, and a stranger's, whose changed description has a right checksum."""
    model = build("mlp-bn", (1, 4, 4), 2, 0)
    private, state = batch_norm_names(model), model.state_dict()
    about = Description(
        "run", "fedbn", "average", "2", "mlp-bn", "0,1", "1x4x4", "0.5", "0.5", "none"
    ).metadata()
    shared = {name: tensor.clone() for name, tensor in state.items() if name not in private}
    kept = {name: tensor.clone() for name, tensor in state.items() if name in private}
    names = [MODEL_FILE, *(site_file(Path(), site).name for site in ("a", "b"))]
    entries = [
        about,
        *(
            {**about, "kind": "site", "site": site, "client": "0", "samples": "3"}
            for site in ("a", "b")
        ),
    ]
    parts = dict(zip(names, zip((shared, kept, kept), entries, strict=True), strict=True))
    whole = {
        name: written_by(lambda file, part=part: write_atomically(file, *part))
        for name, part in parts.items()
    }

    def read_folder(arrived: dict[str, bytes], folder: Path) -> Any:
        for name, content in arrived.items():
            write(folder / name, content)
        model_folder = ModelFolder(folder)
        return (
            digest([model_folder.shared, *model_folder.sites.values()]),
            model_folder.description,
            model_folder.samples,
        )

    def described(change: tuple[str, Any]) -> dict[str, bytes]:
        name, metadata = change
        kept_text = (
            {str(key): str(value) for key, value in metadata.items()}
            if isinstance(metadata, dict)
            else {}
        )
        return {
            **whole,
            name: written_by(lambda file: write_atomically(file, parts[name][0], kept_text)),
        }

    changed = st.sampled_from(names).flatmap(
        lambda name: mutated(whole[name]).map(lambda c: {**whole, name: c})
    )
    swapped = st.permutations(names).map(
        lambda order: dict(zip(names, (whole[name] for name in order), strict=True))
    )
    strangers = st.sampled_from(names).flatmap(
        lambda name: st.tuples(st.just(name), altered(dict(parts[name][1])))
    )
    with tempfile.TemporaryDirectory() as folder:
        genuine = read_folder(whole, Path(folder))
    same_tensors = lambda result: result[0] == genuine[0]  # noqa: E731
    return [
        Subject("exported model", changed | swapped, read_folder, genuine, DATA),
        Subject(
            "exported model, a stranger's",
            strangers.map(described),
            read_folder,
            genuine,
            DATA,
            same_tensors,
        ),
    ]


def memory_subjects(root: Path) -> list[Subject]:
    """A client's memory with changed bytes, and in its place another client's, another round's or another run's."""
    kept, files = {"private": {"weight": torch.arange(6.0), "count": torch.tensor(4)}}, []
    for run, client, round in (("run", 1, 2), ("run", 0, 2), ("run", 1, 1), ("other", 1, 2)):
        folder = folder_of(root / run, client)
        save_memory(folder, round, kept)
        files.append(file_of(folder, round).read_bytes())

    def read_memory(arrived: bytes, folder: Path) -> Any:
        place = folder_of(folder / "run", 1)
        write(file_of(place, 2), arrived)
        return digest(load_memory(place, 2).values())

    refusals = (Damaged, MemoryLost)
    return [
        Subject("memory", mutated(files[0]), read_memory, digest(kept.values()), refusals),
        Subject(
            "memory, another's", st.sampled_from(files[1:]), read_memory, "none of them", refusals
        ),
    ]


def run_subjects(root: Path) -> list[Subject]:
    """A run's checkpoint, records, summary and settings, with changed bytes."""
    shared, folder = {"weight": torch.arange(6.0)}, RunFolder(root / "run")
    folder.path.mkdir(exist_ok=True)
    whole = Checkpoint(
        3, shared, {"fedavg": {"momentum": torch.ones(6)}}, {"average": shared}, {0: 3, 1: 2}
    )
    whole.save(folder.checkpoint_file)
    for round in (1, 2, 3):
        folder.add_round(
            RoundRecord(round, {"average": ModelNumbers({"accuracy": 0.5}, [0.4, 0.6])}, loss=0.25)
        )
    folder.write_summary({"run": "run", "models": {}, "failures": 0, "hash": {"all": "0"}})
    folder.write_settings({"settings": {"rounds": 3}, "partition-hash": "0"})

    def read_checkpoint(run: RunFolder) -> Any:
        checkpoint = Checkpoint.load(run.checkpoint_file)
        states = [checkpoint.shared, *checkpoint.states.values(), *checkpoint.deployed.values()]
        return (
            checkpoint.round,
            digest(states, *checkpoint.states, *checkpoint.deployed),
            checkpoint.memory_rounds,
        )

    def read_rounds(run: RunFolder) -> Any:
        numbers = {record.round: repr(record.to_json()) for record in run.rounds()}
        unchanged = {record.round: repr(record.to_json()) for record in folder.rounds()}
        return numbers.items() <= unchanged.items()  # records may be lost, and none may be another

    readers: dict[Path, Callable[[RunFolder], Any]] = {
        folder.checkpoint_file: read_checkpoint,
        folder.rounds_file: read_rounds,
        folder.summary_file: lambda run: run.summary() in (None, folder.summary()),
        folder.settings_file: lambda run: run.origin() in ({}, folder.origin()),
    }

    def subject(file: Path, reader: Callable[[RunFolder], Any]) -> Subject:
        def read_run(arrived: bytes, inside: Path) -> Any:
            write(inside / "run" / file.name, arrived)
            return reader(RunFolder(inside / "run"))

        return Subject(
            file.name,
            mutated(file.read_bytes()),
            read_run,
            reader(folder),
            (BrokenCheckpoint, DataError),
        )

    return [subject(file, reader) for file, reader in readers.items()]


def subjects(root: Path) -> list[Subject]:
    """Return every reader of files; `root` is an empty folder for what they compare with."""
    return [
        *npz_subjects(), *image_subjects(), idx_subject(), cache_subject(root), *partition_subjects(),
        *experiments_subjects(), *model_subjects(), *memory_subjects(root), *run_subjects(root), *site_subjects(root),
    ]  # fmt: skip


def fuzz_all(examples: int, number: int = 0) -> dict[str, Tally]:
    """Return what becomes of so many changed files, spread over the readers."""
    with tempfile.TemporaryDirectory() as root:
        (Path(root) / "genuine").mkdir()
        every = subjects(Path(root) / "genuine")
        share = -(-examples // (len(every) - FEW))
        return {
            subject.name: fuzz(subject, share, Path(root) / str(k), number)
            for k, subject in enumerate(every)
        }
