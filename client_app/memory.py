"""A client's memory between rounds: one file per round, in the client's own folder.

The server decides which file counts: it names the round of the client's last update that it used, and the digest that
came with it. So a reply that was lost or refused, or a run that was killed, leaves no trace in what the client goes on
from, and nor does a file that somebody has put in its place.
"""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from client_app.state import State, digest, split_prefix, with_prefix
from client_app.tensor_files import KIND, Damaged, read, write_atomically

KEPT = "memory"
"""Key of an exported model's metadata where sites keep a part of it: JSON {SITE: [ROUND, DIGEST]} of their memory."""


class MemoryLost(FileNotFoundError):
    """The memory that the server named is not on this client's disk."""


def folder_of(run_folder: Path, client: int) -> Path:
    """Return the folder of one client's memory."""
    return run_folder / "memory" / f"client-{client:05d}"


def file_of(folder: Path, round: int) -> Path:
    """Return the file of what the client kept in `round`."""
    return folder / f"round-{round:06d}.safetensors"


def identity(folder: Path, round: int, run: str = "") -> dict[str, str]:
    """Return what the file of `round` says of itself, so that it counts nowhere else; the run is its folder's name."""
    run = run or folder.parent.parent.resolve().name
    return {
        KIND: "memory",
        "run": run,
        "client": folder.name,
        "round": str(round),
    }


def load(
    folder: Path, round: int, run: str = "", expected_digest: str = ""
) -> dict[str, dict[str, Tensor]]:
    """Load what the client kept in `round`, by variant; round 0 is a client that has kept nothing yet.

    Raises MemoryLost, naming the file, when it should be there and is not, and Damaged when it is not whole, another
    client's, round's or run's, or not the one of `expected_digest`, if that is given.
    """
    if round == 0:
        return {}
    path = file_of(folder, round)
    if not path.exists():
        raise MemoryLost(f"the memory of round {round} is not at {path}: lost, or another folder")
    tensors, _ = read(path, identity(folder, round, run))
    if expected_digest and digest([tensors]) != expected_digest:
        rule = "is whole, and not the memory that the server knows of: its digest is another"
        raise Damaged(f"{path} {rule}")
    return split_prefix(tensors)


def prune(folder: Path, round: int) -> None:
    """Delete all files except those of `round` and the two before it.

    Call it only once the server has named `round`.

    The checkpoint that names `round` may still be on its way to the disk. The two before belong to the server's last
    checkpoint there, and to its previous one, which counts where the last is damaged. Files after `round` are of
    replies that the server did not use.
    """
    # Most clients keep nothing, and listing files costs a tiny client a twentieth of its round.
    if not folder.exists():
        return
    files = sorted(folder.glob("round-*.safetensors"))
    newest_used = file_of(folder, round)
    used = [path for path in files if path <= newest_used]
    kept = used[-3:]
    for path in files:
        if path not in kept:
            path.unlink(missing_ok=True)
    for path in folder.glob(".round-*"):  # left by a kill while writing
        path.unlink(missing_ok=True)


def save(folder: Path, round: int, memory: Mapping[str, State]) -> str:
    """Save what the client keeps in `round`, if anything, and return its digest."""
    if not memory:
        return ""
    tensors: dict[str, Tensor] = {}
    for part, state in memory.items():
        tensors |= with_prefix(part, state)
    write_atomically(file_of(folder, round), tensors, identity(folder, round))
    return digest([tensors])
