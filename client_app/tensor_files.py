"""Files of tensors and text with a checksum, written in one step: a reader finds the old file or the new one."""

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from client_app.state import digest

CHECKSUM = "checksum"
"""Key of a file's metadata: the digest of its tensors and of its other metadata."""

KIND = "kind"
"""Key of a file's metadata: what the file is of."""


class Damaged(ValueError):
    """A file that is not as it was written, or not the one that belongs there; the message names it."""


class WriteFailed(OSError):
    """A file that could not be written; the message names it and says why."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Within this context, turn whatever prevents `path` from being written into one sentence, WriteFailed."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        where = getattr(error, "filename2", None) or path  # what was to be replaced
        reason = getattr(error, "strerror", None) or error
        raise WriteFailed(f"{where} cannot be written: {reason}") from error


def write_atomically(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    previous: Path | None = None,
    flush: bool = False,
) -> None:
    """Write tensors and text so that a reader, and a kill at any time, finds the old file or the new one.

    With `previous` the old file is kept under that name; a kill may then leave it there alone. With `flush` the new
    file is on the disk before this returns, so that a loss of power keeps it as well. Raises WriteFailed.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    text = dict(metadata or {})
    text[CHECKSUM] = checksum(tensors, text)
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file(contiguous, partial, text)
            if previous is not None and path.exists():
                path.replace(previous)
            if flush:
                flush_to_disk(partial)
            partial.replace(path)
            if flush:
                flush_to_disk(path.parent)  # the file's name is written in its folder
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()  # it is there only where something failed


def flush_to_disk(path: Path) -> None:
    """Return once a file, or the names in a folder, are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def read(
    path: Path, identity: Mapping[str, str] | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return a file's tensors and text.

    `identity` is what the file must say of itself: of which kind, run, client, round it is. Raises Damaged when they
    are not the ones that were written, or another's.
    """
    with opened(path) as file:
        text = dict(file.metadata() or {})
        # Copied, as in the file they lie at any multiple of 4 bytes, and a matrix product's last bits depend on that.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    if text.pop(CHECKSUM, "missing") != checksum(tensors, text):
        raise Damaged(f"{path} is damaged: its checksum is another")
    for key, expected in (identity or {}).items():
        found = text.get(key, "")
        if found != expected:
            rule = f"its {key} is {found[:80]!r}, not {expected!r}"
            raise Damaged(f"{path} is not the file that belongs here: {rule}")
    return tensors, text


def check_length(path: Path) -> None:
    """Raise Damaged for a file that is cut short. No tensor is read, so one that was changed is not found."""
    with opened(path):
        pass


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a file of tensors, which is as long as its head says. Raises Damaged for what is none."""
    if path.is_dir():  # safetensors speaks of a device, and names no file
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    try:
        with safe_open(path, "pt") as file:
            yield file
    except SafetensorError as error:
        raise Damaged(f"{path} is damaged: {error}") from error


def checksum(tensors: Mapping[str, Tensor], text: Mapping[str, str]) -> str:
    """Return the sha256 of tensors and text."""
    words = sorted(f"{key}={value}" for key, value in text.items())
    return digest([tensors], *words)
