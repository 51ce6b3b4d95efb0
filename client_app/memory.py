"""What a client keeps between rounds: one file a round, in the client's own folder.

The server decides which file counts: it names the round of the client's last update that it used and checkpointed. So a
reply that was lost or refused, or a run that was killed, leaves no trace in what the client goes on from.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from client_app.state import State, split_prefix, with_prefix


class MemoryLost(FileNotFoundError):
    """The memory that the server named is not on this client's disk."""


def write_atomically(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors and text so that a reader, and a kill at any time, finds the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial, metadata)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def folder_of(run_folder: Path, client: int) -> Path:
    """Return the folder of one client's memory."""
    return run_folder / "memory" / f"client-{client:05d}"


def file_of(folder: Path, round: int) -> Path:
    """Return the file of what the client kept in `round`."""
    return folder / f"round-{round:06d}.safetensors"


def recall(folder: Path, round: int) -> dict[str, dict[str, Tensor]]:
    """Return what the client kept in `round`, by variant; round 0 is a client that has kept nothing yet.

    Raises MemoryLost, naming the file, when it should be there and is not.
    """
    if round == 0:
        return {}
    path = file_of(folder, round)
    if not path.exists():
        raise MemoryLost(f"the memory of round {round} is not at {path}: lost, or another folder")
    return split_prefix(load_file(path))


def forget_all_but(folder: Path, round: int) -> None:
    """Delete the other rounds' files; call it only once the server has named `round` for training."""
    for path in (*folder.glob("round-*.safetensors"), *folder.glob(".round-*")):  # the latter: a kill while writing
        if path != file_of(folder, round):
            path.unlink(missing_ok=True)


def remember(folder: Path, round: int, memory: Mapping[str, State]) -> None:
    """Write what the client keeps in `round`, if anything."""
    if memory:
        tensors = {name: tensor for part, state in memory.items() for name, tensor in with_prefix(part, state).items()}
        write_atomically(file_of(folder, round), tensors)
