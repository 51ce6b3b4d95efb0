"""Every kind of file that FedSkew reads, and what becomes of changed ones.

`READERS` has the subjects by kind of thing: data, what FedSkew itself writes, TOML files, the audit log. Own data are
those of the registry of readers: a new kind needs a genuine example in `OWN_DATA`, and is fuzzed.

Other but plausible is what no reader can tell from a genuine file: data, or a YAML, TOML or partition file written by
hand, that keeps every rule of its kind and says something else. All that FedSkew itself writes has a checksum.
"""

import builtins
import io
import itertools
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
import yaml
from harness import Payload, Subject, Tally, altered, fuzz, mutated
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from PIL import Image
from site_files import agreed, site_entries

from client_app.handlers import ExpectedState
from client_app.memory import MemoryLost, file_of, folder_of
from client_app.memory import load as load_memory
from client_app.memory import save as save_memory
from client_app.state import digest
from client_app.tensor_files import Damaged
from data import DataError, DataSettings, SettingError, load
from data.agreement import read_agreement
from data.packages import ROOT
from data.partition_files import read
from data.readers.user_data import KINDS
from fedskew.experiments import Experiment, entries_in
from fedskew.experiments.plan import plan
from server_app.checkpoint import BrokenCheckpoint, Checkpoint
from server_app.record import ModelNumbers, RoundRecord
from server_app.run_folder import RunFolder
from site_agent.audit import Audit
from site_agent.config import read_site

Files = dict[str, bytes]
"""Contents by path below a folder."""
SENTENCES = (DataError, SettingError)


def write(folder: Path, files: Files) -> None:
    """Write files below a folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def written_by(save_below: Callable[[Path], Any]) -> Files:
    """Return the files that a function writes below a folder."""
    with tempfile.TemporaryDirectory() as root:
        save_below(Path(root))
        paths = [path for path in Path(root).rglob("*") if path.is_file() and path.stat().st_size]
        return {str(path.relative_to(root)): path.read_bytes() for path in sorted(paths)}


def one_changed(files: Files) -> SearchStrategy[Files]:
    """Draw the files with one of them changed."""
    return st.sampled_from(sorted(files)).flatmap(
        lambda name: mutated(files[name]).map(lambda content: {**files, name: content})
    )


def subject(
    name: str,
    files: Files,
    reader: Callable[[Path], Any],
    refusals: tuple[type[Exception], ...] = SENTENCES,
    plausible: Callable[[Any], bool] = lambda result: False,
    changed: SearchStrategy[Files] | None = None,
) -> Subject:
    """Return the subject of files below a folder, of which by default one is changed."""

    def read_files(arrived: Files, folder: Path) -> Any:
        write(folder, arrived)
        try:
            return reader(folder)
        finally:
            assert not hasattr(builtins, "executed"), "a pickle of the file was executed"

    with tempfile.TemporaryDirectory() as root:
        genuine = read_files(files, Path(root))
    drawn = one_changed(files) if changed is None else changed
    return Subject(name, drawn, read_files, genuine, refusals, plausible)


def by_hand(
    name: str,
    whole: bytes,
    contents: SearchStrategy[bytes],
    reader: Callable[[Path], Any],
    beside: Files | None = None,
) -> list[Subject]:
    """Return the subjects of a file that users write: with changed bytes, and with changed contents.

    Whatever is read is plausible: it has passed each key's rule.
    """
    subjects = []
    for kind, drawn in (("", mutated(whole)), (", contents", contents)):
        files = drawn.map(lambda content: {**(beside or {}), name: content})
        genuine = {**(beside or {}), name: whole}
        subjects.append(subject(name + kind, genuine, reader, SENTENCES, bool, files))
    return subjects


# ---- data ------------------------------------------------------------------------------------------------------------

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 4, 4), np.uint8)
LABELS = np.array([0, 1, 0, 1, 1, 0])
FORMATS = ("png", "jpeg", "tiff")


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


MEMBERS = {f"{side}_{part}": npy(array) for side in ("train", "test")
           for part, array in (("images", PIXELS), ("labels", LABELS))}  # fmt: skip


def packed(members: dict[str, bytes]) -> Files:
    """Return the npz file that holds these members."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), content)
    return {"own.npz": file.getvalue()}


def folder_of_images() -> Files:
    """Return a folder of two classes and two splits with an image of every format."""
    files = {}
    for number, format in enumerate(FORMATS):
        file = io.BytesIO()
        Image.fromarray(np.kron(PIXELS[number], np.ones((5, 5), np.uint8))).save(file, format)
        for split, label in itertools.product(("train", "test"), ("a", "b")):
            files[f"own/{split}/{label}/{number}.{format}"] = file.getvalue()
    return files


def table() -> Files:
    rows = [f"{k},{k / 7:.3f},{'ab'[k % 2]}\n" for k in range(30)]
    return {"own.csv": "".join(["age,score,label\n", *rows]).encode()}


OWN_DATA: dict[str, tuple[Files, str]] = {
    "npz": (packed(MEMBERS), "1x4x4"),
    "folder": (folder_of_images(), "1x4x4"),
    "csv": (table(), "2"),
}
"""By kind of own data: genuine files, and the shape of an input."""


def loaded(settings: DataSettings) -> list[Any]:
    """Return inputs and labels of both sides."""
    data = load(settings)
    pairs = ((data.train.inputs, data.train.labels), (data.test.inputs, data.test.labels))
    return [(np.asarray(inputs[:]).tolist(), labels.tolist()) for inputs, labels in pairs]


def trainable(splits: Any) -> bool:
    """Return whether a model of ten classes at most can be trained on it."""
    return all(
        np.isfinite(np.array(inputs, float)).all()
        and len(inputs) == len(labels)
        and {*labels} <= {*range(10)}
        for inputs, labels in splits
    )


def data_subjects() -> list[Subject]:
    """Own data of every kind that no library reads, and an npz file with changed members."""

    def own(kind: str, changed: SearchStrategy[Files] | None = None) -> Subject:
        files, shape = OWN_DATA[kind]

        def read_own(folder: Path) -> list[Any]:
            (path,) = folder.glob("own*")
            dataset, cache = f"{kind}:{path}", folder / "cache"
            try:
                return loaded(
                    DataSettings(dataset, classes="a,b", input_shape=shape, cache=str(cache))
                )
            finally:
                shutil.rmtree(cache, ignore_errors=True)

        name = kind if changed is None else f"{kind}, members"
        return subject(name, files, read_own, plausible=trainable, changed=changed)

    hostile = [npy(np.array([Payload()], object)), npy(np.zeros((6, 4, 4)))]
    member = st.sampled_from(sorted(MEMBERS)).flatmap(
        lambda name: st.tuples(st.just(name), mutated(MEMBERS[name]) | st.sampled_from(hostile))
    )
    inside = member.map(lambda change: packed({**MEMBERS, change[0]: change[1]}))
    kinds = [kind for kind in KINDS if kind not in ("medmnist", "hf")]
    return [*map(own, kinds), own("npz", inside)]


# ---- what FedSkew writes ---------------------------------------------------------------------------------------------

SHIPPED = yaml.safe_load((ROOT / "experiments.yaml").read_text())
EXPERIMENTS = {name: SHIPPED[name] for name in ("demo-missing", "demo-tail", "demo-tails")}


def written_subjects() -> list[Subject]:
    """What FedSkew writes, and what users write by hand into the same kinds of files."""
    return [partition_subject(), *experiments_subjects(), memory_subject(), *run_subjects()]


def partition_subject() -> Subject:
    """A partition file with changed bytes."""
    parts = np.arange(9).reshape(3, 3).tolist()

    def write(folder: Path) -> None:
        (folder / "own.json").write_text(json.dumps(parts))

    def read_file(folder: Path) -> Any:
        return [part.tolist() for part in read(str(folder / "own.json"))]

    return subject("partition file", written_by(write), read_file)


def experiments_subjects() -> list[Subject]:
    """A file of experiments with changed bytes, and one with changed contents."""

    def read_file(folder: Path) -> Any:
        known = entries_in(folder / "experiments.yaml")
        return known, [plan(entry) for entry in known.values() if isinstance(entry, Experiment)]

    whole = yaml.safe_dump(EXPERIMENTS, sort_keys=False).encode()
    contents = altered(EXPERIMENTS).map(lambda tree: yaml.safe_dump(tree).encode())
    return by_hand("experiments.yaml", whole, contents, read_file)


def memory_subject() -> Subject:
    """A client's memory with changed bytes, or in its place another client's or another round's."""
    kept = {"private": {"weight": torch.arange(6.0), "count": torch.tensor(4)}}

    def save_all(root: Path) -> None:
        for client, round in ((1, 2), (0, 2), (1, 1)):
            save_memory(folder_of(root / "run", client), round, kept)

    def read_memory(folder: Path) -> Any:
        return digest(load_memory(folder_of(folder / "run", 1), 2).values())

    files = written_by(save_all)
    place = str(file_of(folder_of(Path("run"), 1), 2))
    others = [content for name, content in files.items() if name != place]
    changed = (mutated(files[place]) | st.sampled_from(others)).map(lambda c: {place: c})
    return subject("memory", files, read_memory, (Damaged, MemoryLost), changed=changed)


def run_subjects() -> list[Subject]:
    """A run's checkpoint and records with changed bytes: records may be lost, and none may be another."""
    shared = {"weight": torch.arange(6.0)}
    momentum = {"momentum": torch.ones(6)}
    whole = Checkpoint(3, shared, {"fedavg": momentum}, {"average": shared}, {0: ExpectedState(3)})
    numbers = {"average": ModelNumbers({"accuracy": 0.5}, [0.4, 0.6])}

    def save_all(root: Path) -> None:
        folder = RunFolder(root / "run")
        folder.path.mkdir()
        whole.save(folder.checkpoint_file)
        for round in (1, 2, 3):
            folder.add_round(RoundRecord(round, numbers, loss=0.25))

    def read_checkpoint(folder: Path) -> Any:
        checkpoint = Checkpoint.load(RunFolder(folder / "run").checkpoint_file)
        states = [checkpoint.shared, *checkpoint.states.values(), *checkpoint.deployed.values()]
        return checkpoint.round, digest(states), checkpoint.memory_rounds

    def read_rounds(folder: Path) -> Any:
        records = RunFolder(folder / "run").rounds()
        return all(
            record.to_json() == RoundRecord(record.round, numbers, loss=0.25).to_json()
            for record in records
        )

    files = written_by(save_all)
    readers = {"checkpoint.safetensors": read_checkpoint, "rounds.jsonl": read_rounds}
    refusals = (BrokenCheckpoint, DataError)
    return [
        subject(name, {f"run/{name}": files[f"run/{name}"]}, reader, refusals)
        for name, reader in readers.items()
    ]


# ---- TOML files and the audit log ------------------------------------------------------------------------------------


def as_toml(entries: Any) -> bytes:
    """Return what TOML can say of changed entries: no null, and a table at the top."""
    try:
        return tomli_w.dumps(entries).encode()
    except (TypeError, ValueError, AttributeError):
        return repr(entries).encode()


def toml_subjects() -> list[Subject]:
    """federation.toml and site.toml with changed bytes, and with changed contents."""

    def read_federation(folder: Path) -> Any:
        agreement = read_agreement(folder / "federation.toml")
        keys = [(site.name, site.key) for site in agreement.sites]
        return agreement.name, agreement.classes, agreement.min_sites, keys

    def read_own_site(folder: Path) -> Any:
        site = read_site(folder / "site.toml")
        return (
            site.name,
            site.number,
            sorted(site.policy.allow),
            site.device,
            site.threads,
            site.policy.max_norm,
        )

    own = site_entries(policy={"allow": ["model"], "max-norm": 2.5})
    beside = {"federation.toml": as_toml(agreed()), "data.npz": b""}
    return [
        *by_hand(
            "federation.toml", as_toml(agreed()), altered(agreed()).map(as_toml), read_federation
        ),
        *by_hand("site.toml", as_toml(own), altered(own).map(as_toml), read_own_site, beside),
    ]


def audit_subjects() -> list[Subject]:
    """An audit log with changed bytes, which tells of every change."""

    def save_log(folder: Path) -> None:
        for number in range(4):
            Audit(folder / "audit.jsonl").write("answered", kind="train", round=number)

    def verify(folder: Path) -> Any:
        log = folder / "audit.jsonl"
        return log.read_bytes().split(b"\n")[: Audit(log).verify()]

    return [subject("audit log", written_by(save_log), verify)]


READERS: dict[str, Callable[[], list[Subject]]] = {
    "data": data_subjects,
    "what FedSkew writes": written_subjects,
    "TOML files": toml_subjects,
    "the audit log": audit_subjects,
}


def fuzz_files(kind: str, examples: int, number: int = 0) -> dict[str, Tally]:
    """Return what becomes of so many changed files of every subject of a kind."""
    with tempfile.TemporaryDirectory() as root:
        return {
            subject.name: fuzz(subject, examples, Path(root) / str(place), number)
            for place, subject in enumerate(READERS[kind]())
        }
