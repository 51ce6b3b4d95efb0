"""A coordinator's backup in one file: its folder without flwr's state, and the folders of its runs.

The SuperLink's database is left out. It has nothing of a run, and `up` makes another and registers the sites. Keys that
are kept elsewhere, ca.key or coordinator.key, are not in it.
"""

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from data import DataError, SettingError
from data.private_files import owner_only
from fedskew.federation.folder import FederationFolder, require_empty

MANIFEST = "manifest.json"
"""The archive's last file: the sha256 of every other one."""
FEDERATION, RESULTS = "federation", "results"
"""The archive's folders."""
NAMED_BY = {FEDERATION: "FOLDER", RESULTS: "--results"}
"""How the command line names where each of them goes."""


def backup(folder: FederationFolder, file: Path, results: Path | None = None) -> int:
    """Write a federation's files, and those of its runs, into a new archive; return how many there are.

    A run may be going on. Restored, it resumes from the last round that was recorded.

    Args:
        folder: The coordinator's.
        file: The archive, .tar.gz, for its owner alone: it has the private keys that are in the folder.
        results: The folder of the runs' folders; None for no runs.

    Raises:
        SettingError: the archive is there already, or stands in one of the folders.
        DataError: no federation's folder, or no such folder of runs.
    """
    if file.exists():
        raise SettingError("FILE", str(file), "is there already; a backup is never overwritten")
    folder.agreement  # noqa: B018 -- raises DataError where the folder is none of a federation
    parts = {FEDERATION: folder.path}
    if results is not None:
        if not results.is_dir():
            raise DataError("there is no such folder", where=str(results))
        parts[RESULTS] = results
    for part in parts.values():
        if file.resolve().is_relative_to(part.resolve()):
            raise SettingError("FILE", str(file), f"must not be in {part}, which it is to contain")
    draft = file.with_name(f"{file.name}.part")
    hashes: dict[str, str] = {}
    with owner_only(), tarfile.open(draft, "w:gz") as archive:
        for name, path in files_of(parts, leave_out=folder.state):
            content = path.read_bytes()
            hashes[name] = hashlib.sha256(content).hexdigest()
            put(archive, name, content, path.stat().st_mode & 0o777)
        put(archive, MANIFEST, json.dumps(hashes).encode(), 0o600)
    draft.replace(file)
    return len(hashes)


def files_of(parts: dict[str, Path], leave_out: Path) -> Iterator[tuple[str, Path]]:
    """Return the name in the archive and the path of every file; those below `leave_out` are not among them."""
    for part, folder in parts.items():
        for path in sorted(folder.rglob("*")):
            if not path.is_file() or path.is_relative_to(leave_out):
                continue
            below = path.relative_to(folder).as_posix()
            yield f"{part}/{below}", path


def put(archive: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    """Write a file into an archive."""
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    entry.mode = mode
    archive.addfile(entry, io.BytesIO(content))


def restore(file: Path, path: Path, results: Path | None = None) -> FederationFolder:
    """Write a backup's files into new folders, and return the coordinator's.

    Args:
        file: The archive.
        path: The coordinator's folder, which must be empty or missing.
        results: That of the runs' folders, too; needed where the archive has runs.

    Raises:
        SettingError: a folder is not empty, or none is named for the runs.
        DataError: no archive that `backup` has written, or a damaged one. Nothing is written then.
    """
    targets = {FEDERATION: path}
    if results is not None:
        targets[RESULTS] = results
    for part, target in targets.items():
        rule = "must be empty: a backup is never restored over other files"
        require_empty(NAMED_BY[part], target, rule)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Beside the coordinator's folder, so that a move copies nothing; for its owner alone, and removed at the end.
    with TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as temporary:
        draft = Path(temporary)
        unpack(file, draft)
        if (draft / RESULTS).exists() and results is None:
            rule = "is needed: the backup has runs as well"
            raise SettingError("--results", "", rule)
        for part in targets:
            if not (draft / part).exists():
                raise DataError(f"has no {part}", where=str(file))
        for part, target in targets.items():
            if target.exists():
                target.rmdir()
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(draft / part, target)
    folder = FederationFolder(path)
    folder.state.mkdir(mode=0o700)
    return folder


def unpack(file: Path, draft: Path) -> None:
    """Write an archive's files into a folder.

    Raises DataError for what is no backup: links, paths that lead elsewhere, files that are damaged, missing or too
    large for the disk.
    """
    try:
        with tarfile.open(file, "r:gz") as archive:
            entries = archive.getmembers()
            if not all(entry.isreg() for entry in entries):
                raise DataError("is no backup: it has other entries than files", where=str(file))
            size = sum(entry.size for entry in entries)
            free = shutil.disk_usage(draft).free
            if size > free:
                reason = f"needs {size} bytes of disk, and {free} are free"
                raise DataError(reason, where=str(file))
            archive.extractall(draft, filter="data")
        hashes: dict[str, str] = json.loads((draft / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, EOFError, ValueError, tarfile.TarError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"is no readable backup: {reason}", where=str(file)) from None
    (draft / MANIFEST).unlink()
    found = {
        path.relative_to(draft).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in draft.rglob("*")
        if path.is_file()
    }
    for name in sorted(found.keys() | hashes.keys()):
        if found.get(name) != hashes.get(name):
            raise DataError(f"is damaged: {name} is not what was saved", where=str(file))
