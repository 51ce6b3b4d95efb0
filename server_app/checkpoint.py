"""A run's checkpoint: model, every method's state and all else that a resume needs, in one atomically replaced file.

A `Writer` writes it, and the round's record, while the next round trains.
"""

import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path

from torch import Tensor

from client_app.handlers import ExpectedState
from client_app.memory import MemoryLost, folder_of
from client_app.process import make_deterministic
from client_app.state import State, digest, split_prefix, with_prefix
from client_app.tensor_files import KIND, Damaged, read, write_atomically
from data.text import LineSink
from server_app.run_folder import RunFolder
from strategies.core.rounds import Rounds
from strategies.core.server import AVERAGE


class BrokenCheckpoint(RuntimeError):
    """The file is no checkpoint, or not a whole one."""


@dataclass(frozen=True)
class Checkpoint:
    """A run after `round`."""

    round: int
    shared: State
    states: dict[str, State]
    """Of every server method, and the answers to questions, by part."""
    deployed: dict[str, State]
    client_states: dict[int, ExpectedState] = field(default_factory=dict)
    """By client, its memory of the last update that was used, and the data of its first one."""

    def save(self, path: Path, previous: Path | None = None) -> None:
        """Write the checkpoint atomically; the one before is kept as `previous`."""
        tensors = with_prefix("shared", self.shared)
        for part, state in self.states.items():
            tensors |= with_prefix(f"state/{part}", state)
        for name, state in self.deployed.items():
            # A deployed model shares most tensors with the average; only its own are written.
            own = {key: state[key] for key in state if state[key] is not self.shared.get(key)}
            tensors |= with_prefix(f"deployed/{name}", own)
        contents = {
            "round": self.round,
            "clients": {client: astuple(state) for client, state in self.client_states.items()},
            "parts": list(self.states),
            "deployed": list(self.deployed),
            # A file of tensors sorts them, and a method may draw one tensor after the other.
            "order": list(tensors),
        }
        metadata = {**identity(path), "fedskew": json.dumps(contents)}
        write_atomically(path, tensors, metadata, previous)

    @property
    def memory_rounds(self) -> dict[int, int]:
        """By client, the round of its memory; none of clients that keep nothing."""
        return {client: state.round for client, state in self.client_states.items() if state.round}

    @staticmethod
    def load(path: Path, run: str = "") -> "Checkpoint":
        """Read a checkpoint of `run`, by default the one that the folder is named after.

        Raises BrokenCheckpoint, naming the file.
        """
        try:
            tensors, metadata = read(path, identity(path, run))
            contents = json.loads(metadata["fedskew"])
            kinds = split_prefix({name: tensors[name] for name in contents["order"]})
            shared = kinds.get("shared", {})
            states = split_prefix(kinds.get("state", {}))
            own = split_prefix(kinds.get("deployed", {}))
            clients = contents["clients"].items()
            return Checkpoint(
                round=contents["round"],
                shared=shared,
                states={part: states.get(part, {}) for part in contents["parts"]},
                deployed={name: {**shared, **own.get(name, {})} for name in contents["deployed"]},
                client_states={int(client): ExpectedState(*state) for client, state in clients},
            )
        except Damaged as error:
            raise BrokenCheckpoint(str(error)) from error
        except (KeyError, ValueError, TypeError) as error:
            raise BrokenCheckpoint(f"{path} is no checkpoint of this version") from error


STATE = [field.name for field in fields(Checkpoint)]
"""The attributes of a strategy that are a run's state: setting them resumes the run."""


def identity(path: Path, run: str = "") -> dict[str, str]:
    """Return what a checkpoint says of itself, so that it counts in its own run alone."""
    return {KIND: "checkpoint", "run": run or path.parent.resolve().name}


def latest(folder: RunFolder, report_line: LineSink) -> Checkpoint | None:
    """Return a run's newest checkpoint that is whole, with its clients' memory, or None; report what cannot be used.

    Where the record of its round is lost the previous one is taken: running that round again gives the record back.
    What cannot be used is deleted, as it would take the place of the previous checkpoint; never because of a record.
    """
    recorded = {0, *(record.round for record in folder.rounds())}
    usable = None
    for file in filter(Path.exists, (folder.checkpoint_file, folder.previous_file)):
        try:
            checkpoint = Checkpoint.load(file)
            check_memory(folder, checkpoint)
        except (BrokenCheckpoint, Damaged, MemoryLost) as error:
            report_line(str(error))
            file.unlink()
            continue
        usable = checkpoint
        if checkpoint.round in recorded:
            break
    return usable


def check_memory(folder: RunFolder, checkpoint: Checkpoint) -> None:
    """Raise Damaged or MemoryLost for a memory file that the checkpoint names; a client whose folder is not here keeps
    its memory elsewhere and checks it itself."""
    for client, state in checkpoint.client_states.items():
        of_client = folder_of(folder.path, client)
        if of_client.exists():
            state.load_memory(of_client)


def hashes(strategy: Rounds, run_folder: Path) -> dict[str, str]:
    """Return the run's hashes: one for shared, deployed and client memory together, and one for each.

    Equal ones mean that two runs have the same numbers to the bit. Where a client keeps its memory on another machine,
    the digests that came with the updates stand for it: the same in every run of the same sites, and another hash than
    over the memory itself.
    """
    shared = [strategy.shared]
    deployed = []
    for name, state in sorted(strategy.deployed.items()):
        if name != AVERAGE:
            deployed.append(with_prefix(name, state))

    memory: dict[str, Tensor] = {}
    words: list[str] = []
    kept = {client: state for client, state in strategy.client_states.items() if state.round}
    folders = {client: folder_of(run_folder, client) for client in sorted(kept)}
    if all(folder.exists() for folder in folders.values()):
        for client, folder in folders.items():
            for part, state in kept[client].load_memory(folder).items():
                memory |= with_prefix(f"{client}/{part}", state)
    else:
        words = [f"{client} {kept[client].memory}" for client in folders]
    return {
        "all": digest([*shared, *deployed, memory], *words),
        "shared": digest(shared),
        "deployed": digest(deployed),
        "memory": digest([memory], *words),
    }


class Writer:
    """Writes in the background, one thing after the other; a context manager that ends once everything is written.

    What the work reads must not change before it has ended.
    """

    def __init__(self) -> None:
        # A new thread of Python's has as many threads of OpenMP's and MKL's as there are cores, whatever others have.
        self.thread = ThreadPoolExecutor(1, "writer", make_deterministic)
        self.last: Future[None] | None = None

    def begin(self, work: Callable[[], None]) -> None:
        """Begin the work once what was begun before has ended. Raises as `wait`."""
        self.wait()
        self.last = self.thread.submit(work)

    def wait(self) -> None:
        """Return when everything is written. Raises what the work has raised, again whenever it is asked."""
        if self.last is not None:
            self.last.result()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *error: object) -> None:
        with self.thread:
            self.wait()
