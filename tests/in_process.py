"""Experiments without Ray for the tests: small settings, grids that tamper with replies, runs that kill themselves."""

import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from flwr.app import Message, RecordDict

import client_app.handlers
import client_app.tensor_files
import fedskew.experiments
from client_app.client import Client, Report
from client_app.flower_internals import message_from_proto, message_to_proto
from client_app.messages import kind_of, pack, unpack
from client_app.state import digest
from fedskew.engines.local import LocalGrid
from fedskew.engines.workers import WorkersGrid
from fedskew.experiments.plan import Cell, plan
from server_app.app import run
from server_app.checkpoint import Checkpoint
from server_app.record import RoundRecord
from server_app.run_folder import RunFolder
from server_app.run_settings import RunSettings
from server_app.settings import parse

SMALL: dict[str, Any] = {
    "method": "fedavg",
    "model": "mlp-bn",
    "rounds": 2,
    "local-epochs": 2,
    "dataset": "digits",
    "clients": 4,
    "train-images": 200,
    "test-images": 100,
    "alpha": 0.5,
    "min-samples": 5,
    "device": "cpu",
}
HEADS = ("fed-lda", "fed-lda-pooled", "fed3r", "fedncm")
SERVER_SMALL: dict[str, dict[str, Any]] = {
    "creff": {"creff.features-per-class": 5, "creff.feature-steps": 3, "creff.head-steps": 4},
    "creff-code": {
        "creff-code.features-per-class": 5,
        "creff-code.feature-steps": 3,
        "creff-code.head-epochs": 2,
        "augmented-gradients.repeats": 2,
    },
    "ccvr": {"ccvr.features-per-class": 5, "ccvr.head-steps": 4},
    **{head: {"model": "linear"} for head in HEADS},
    "ratio-loss": {"holdout-per-class": 3},
    "real-features": {"holdout-per-class": 3, "real-features.head-steps": 4},
    "real-blocks": {"holdout-per-class": 3, "real-blocks.steps": 4, "real-blocks.batch-size": 8},
    "feddf": {"holdout-per-class": 3, "feddf.steps": 4, "feddf.batch-size": 8},
    "fedbe": {"holdout-per-class": 3, "fedbe.steps": 4, "fedbe.batch-size": 8, "fedbe.models": 2},
}
"""By method: the settings it needs, and short work for the server."""

Tamper = Callable[[Message, RecordDict], None]
"""(what was asked, the reply's records to change in place)."""


Opened = TypeVar("Opened", bound=LocalGrid)


def faithful(grid: Opened) -> Opened:
    """Let a grid send each message through flwr's own protobuf, as it would travel, in place of handing tensors over.

    Both give the same results to the bit.
    """
    answer = grid.answer_here

    def by_protobuf(message: Message) -> Message:
        reply = answer(message_from_proto(message_to_proto(message)))
        return message_from_proto(message_to_proto(reply))

    untouched: Any = SimpleNamespace(enter_context=lambda context: None, close=lambda: None)
    grid.stack = untouched  # nothing is handed over
    grid.answer_here = by_protobuf  # type: ignore[method-assign]
    return grid


class TamperingGrid(LocalGrid):
    """Changes replies on their way back, and keeps what was asked."""

    def __init__(self, tamper: Tamper | None = None) -> None:
        super().__init__()
        self.tamper = tamper
        self.asked: list[Message] = []

    def kinds(self) -> list[str]:
        """Return the types of the messages asked, in order."""
        return [kind_of(message) for message in self.asked]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        self.asked += messages
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(super().pull_messages(message_ids))
        asked = {message.metadata.message_id: message for message in self.asked}
        for reply in replies:
            if self.tamper and not reply.has_error():
                self.tamper(asked[reply.metadata.reply_to_message_id], reply.content)
        return replies


class ManyNodes(TamperingGrid):
    """Several nodes in one process; replies come back in the opposite order."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        self.nodes = nodes

    def get_node_ids(self) -> Iterable[int]:
        return [7 * node + 3 for node in reversed(range(self.nodes))]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies: list[Message] = []
        for number in reversed(list(message_ids)):
            replies += super().pull_messages([number])
        return replies


@dataclass(frozen=True)
class FinishedRun:
    """A finished run and what it left behind."""

    summary: dict[str, Any]
    folder: RunFolder
    lines: list[str]

    @property
    def hash(self) -> str:
        return str(self.summary["hash"]["all"])

    @property
    def records(self) -> list[dict[str, Any]]:
        """The rounds' records without what differs from run to run: seconds and processes."""
        records = [record.to_json() for record in self.folder.rounds()]
        for record in records:
            record.pop("seconds", None), record.pop("workers", None)
        rounds = [record["round"] for record in records]
        assert rounds == sorted({*rounds})
        return records


def small(results: Path, **changes: Any) -> RunSettings:
    """Return small settings with changes; keys with `_` for `-` and `__` for `.`."""
    method = str(changes.get("method", SMALL["method"]))
    needed: dict[str, Any] = {}
    for name in method.split("+"):
        needed |= SERVER_SMALL.get(name, {})
    stated = {key.replace("__", ".").replace("_", "-"): value for key, value in changes.items()}
    return parse({**SMALL, **needed, "results": str(results), **stated})


def cells_of(results: Path, **entry: Any) -> list[Cell]:
    """Return the cells of a small experiment on digits."""
    settings = {
        key: value for key, value in {**SMALL, "results": str(results)}.items() if key != "method"
    }
    entry = {"title": "", "methods": ["fedavg", "fedshift"], **entry}
    entry["settings"] = {**settings, **entry.get("settings", {})}
    return plan(fedskew.experiments.experiment("one", entry))


def experiment(
    results: Path, grid: LocalGrid | WorkersGrid | None = None, **changes: Any
) -> FinishedRun:
    """Run one experiment and return its outcome."""
    settings, lines = small(results, **changes), list[str]()
    with grid or WorkersGrid() as opened:
        summary = run(opened, settings, lines.append)
    return FinishedRun(summary, RunFolder(settings.folder), lines)


def contents_of(folder: RunFolder) -> dict[str, Any]:
    """Return the contents of a finished run's files by name, without seconds and processes."""
    contents: dict[str, Any] = {}
    for file in sorted(folder.path.glob("*.safetensors")):
        tensors, text = client_app.tensor_files.read(file)
        contents[file.name] = digest([tensors]), text
    summary = folder.summary()
    assert summary is not None
    contents["summary.json"] = {**summary, "seconds-of-this-start": 0}
    contents["rounds.jsonl"] = FinishedRun(summary, folder, []).records
    return contents


def number_of(asked: Message) -> int:
    """Return the round that a message is about; 0 for a question."""
    return int(asked.content.config_records["task"].get("round", 0))  # type: ignore[arg-type]


def drop(records: RecordDict, client: int) -> None:
    """Take out everything a client sent."""
    for name in [name for name in records if name.startswith(f"{client}/")]:
        del records[name]


def losses(plan: Mapping[int, tuple[str, int]]) -> Tamper:
    """Return a tampering that loses or spoils one client's training reply: {round: ("drop" or "nan", client)}."""

    def tamper(asked: Message, records: RecordDict) -> None:
        kind, client = plan.get(number_of(asked), ("", -1))
        if kind_of(asked) != "train" or f"{client}/model" not in records:
            return
        if kind == "drop":
            drop(records, client)
        else:
            model = unpack(records.array_records[f"{client}/model"])
            records[f"{client}/model"] = pack(
                {**model, "head.bias": model["head.bias"] * float("nan")}
            )

    return tamper


PLACES = ("during training", "before the checkpoint", "between its names", "after the checkpoint")
"""Where a run kills itself in a round; from the record on while the next round trains, if there is one."""


def killed(
    results: str,
    place: str,
    round: int,
    changes: dict[str, Any],
) -> None:
    """Run an experiment that kills its own process (kill -9) in a place of a round."""
    settings, written, busy = small(Path(results), **changes), threading.Event(), list[int]()
    trained: Counter[int] = Counter()
    next_round = threading.Event()

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def come_to(here: str, number: int) -> None:
        """In the thread that writes: die here, once clients of the next round have deleted and written memory."""
        if (here, number) == (place, round):
            assert number == settings.general.rounds or next_round.wait(60)
            die()

    def train_round(client: Client, *arguments: Any) -> Report:
        trained[client.round] += 1
        if trained[round + 1] == 2:
            next_round.set()
        if (place, client.round, client.id) == ("during training", round, 2):
            assert written.wait(60)
            die()
        return original(client, *arguments)

    def add_round(folder: RunFolder, record: RoundRecord) -> None:
        added(folder, record)
        if (place, record.round) == ("before the checkpoint", round):
            with folder.rounds_file.open("a") as file:
                file.write('{"round": 4, "models"')  # a line cut short
        come_to("before the checkpoint", record.round)

    def save(checkpoint: Checkpoint, path: Path, previous: Path | None = None) -> None:
        busy.append(checkpoint.round)
        saved(checkpoint, path, previous)
        come_to("after the checkpoint", busy.pop())
        if checkpoint.round == round - 1:
            written.set()

    def replace(path: Path, target: Path) -> Path:
        result = replaced(path, target)
        if Path(target).name == "previous.safetensors":
            come_to("between its names", busy[-1])
        return result

    original, client_app.handlers.train_round = client_app.handlers.train_round, train_round
    added, saved, replaced = RunFolder.add_round, Checkpoint.save, Path.replace
    RunFolder.add_round = add_round  # type: ignore[method-assign]
    Checkpoint.save = save  # type: ignore[method-assign]
    Path.replace = replace  # type: ignore[method-assign, assignment]
    experiment(Path(results), TamperingGrid(), **changes)


def kill(
    results: Path,
    place: str,
    changes: dict[str, Any],
    *,
    round: int = 3,
) -> None:
    """Run an experiment in a process of its own until it kills itself there."""
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=killed, args=(str(results), place, round, changes))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL


def cut(file: Path, length: int) -> None:
    """Take bytes off a file's end."""
    file.write_bytes(file.read_bytes()[:-length])
