"""The files of an app, and the hash that all parties of a federation agree to: over names and contents, not a zip."""

import hashlib
import io
import re
import shutil
import stat
import tomllib
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from data import DataError

LARGEST = 64 * 2**20
"""Bytes that an app's files may have in all; flwr packs at most 10 MB."""
NAME = re.compile(r"\w[\w.-]*")
"""A file or folder in an app; a pattern of fab-include can be `/NAME` or `NAME/**`."""


def app_files(path: Path) -> dict[str, bytes]:
    """Return an app's files by name: of a .fab, or of those of a folder that flwr would pack.

    flwr leaves links in a folder out; what `.info/` holds is about the zip and no part of the app.

    Raises:
        DataError: no app, or a .fab with a path or an entry that no app has.
    """
    return packed_files(packed_app(path), str(path))


def packed_app(path: Path) -> bytes:
    """Return an app's .fab: that of a folder, or the file itself. Raises DataError for what cannot be read."""
    if path.is_dir():
        return build(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"the app cannot be read: {error.strerror}", where=str(path)) from None


def build(folder: Path) -> bytes:
    """Return the .fab that flwr makes of an app's folder. Raises DataError for a folder that is no app."""
    from site_agent.flower_internals import build_fab_from_disk

    try:
        with warnings.catch_warnings(), TemporaryDirectory() as temporary:
            warnings.simplefilter("ignore")  # flwr's own use of pathspec is deprecated
            app = staged(folder, Path(temporary, "app"))
            return build_fab_from_disk(app)
    except Exception as error:
        raise DataError(f"flwr cannot pack this app: {error}", where=str(folder)) from None


def staged(app: Path, folder: Path) -> Path:
    """Copy what an app's fab-include names to `folder`, and return where flwr should look for the app.

    flwr reads every file below an app's folder before it selects the app's: tens of thousands where a virtual
    environment or results are there, which takes seconds. An app whose fab-include has other patterns than names of
    files and folders is left where it is, and so is one that flwr will refuse.
    """
    try:
        content = tomllib.loads((app / "pyproject.toml").read_text())
        patterns = content["tool"]["flwr"]["app"]["fab-include"]
        names = [pattern.removeprefix("/").removesuffix("/**") for pattern in patterns]
        are_plain = all(NAME.fullmatch(name) for name in names)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return app
    if not are_plain or not names:
        return app
    folder.mkdir()
    no_bytecode = shutil.ignore_patterns("__pycache__")
    copied = {*names, "pyproject.toml", ".gitignore"}  # flwr leaves out what .gitignore lists
    for name in sorted(copied):
        source = app / name
        if source.is_symlink():
            continue
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True, ignore=no_bytecode)
        elif source.is_file():
            shutil.copy2(source, folder / name)
    return folder


def packed_files(fab: bytes, name: str = "the app") -> dict[str, bytes]:
    """Return the files of a .fab by name, those below `.info/` left out; nothing is written anywhere.

    Raises:
        DataError: a damaged or too large zip, a name twice, a link, or a path that leads out of the app.
    """
    files: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(fab)) as packed:
            entries = [entry for entry in packed.infolist() if not entry.is_dir()]
            if sum(entry.file_size for entry in entries) > LARGEST:
                raise DataError(f"the files must come to at most {LARGEST >> 20} MiB", where=name)
            for entry in entries:
                check_entry(entry, name)
                if entry.filename in files:
                    raise DataError(f"{entry.filename!r} is there twice", where=name)
                files[entry.filename] = packed.read(entry)
    except DataError:
        raise
    except Exception as error:  # zipfile raises some ten kinds for damaged zips
        raise DataError(f"no readable .fab: {type(error).__name__}: {error}", where=name) from None
    return {file: content for file, content in files.items() if not file.startswith(".info/")}


def check_entry(entry: zipfile.ZipInfo, name: str) -> None:
    """Raise DataError for a link, or a path that is not plainly below the app's folder."""
    file = entry.filename
    if stat.S_ISLNK(entry.external_attr >> 16):
        raise DataError(f"{file!r} is a link, which an app must not hold", where=name)
    path = PurePosixPath(file)
    is_inside = str(path) == file and not path.is_absolute() and ".." not in path.parts
    # zipfile cuts a name off at a zero byte.
    is_odd = any(letter in entry.orig_filename for letter in "\\:\0")
    if is_odd or not is_inside or not file.isprintable():
        raise DataError(f"{file!r} is no plain path inside the app", where=name)


def app_hash(files: Mapping[str, bytes]) -> str:
    """Return the sha256 of an app's files: of one line `NAME SHA256` per file, sorted."""
    rows = []
    for name, content in files.items():
        rows.append(f"{name} {hashlib.sha256(content).hexdigest()}")
    text = "\n".join(sorted(rows))
    return hashlib.sha256(text.encode()).hexdigest()
