"""medmnist:NAME: an npz file of MedMNIST (Yang et al., 2023), which its own package downloads."""

from importlib import import_module
from pathlib import Path
from typing import Any

from data.errors import DataError, SetOption
from data.packages import needed
from data.settings import DataSettings
from data.text import said

ROOT = "~/.medmnist"
"""Where the package keeps its files."""


def file_of(path: Path) -> Path:
    """NAME.npz in data-root, or where the package keeps it."""
    in_data_root = path.with_name(f"{path.name}.npz")
    of_package = Path(ROOT).expanduser() / f"{path.name}.npz"
    if of_package.is_file() and not in_data_root.is_file():
        return of_package
    return in_data_root


def files(path: Path, settings: DataSettings) -> list[Path]:
    """The file; none where it is still to be downloaded. Raises DataError where it is not there and may not be."""
    file = file_of(path)
    if file.is_file():
        return [file]
    if settings.download:
        return []
    gets_it = " gets it through medmnist (pip install 'fedskew[medmnist]')"
    remedy = SetOption("download", "true"), gets_it
    raise DataError(f"is not there, nor in {ROOT}", where=str(file), remedy=remedy)


def fetched(path: Path, settings: DataSettings) -> Path:
    """Return the file, which is downloaded first where it is not there.

    Raises:
        DataError: it is not there and may not, or cannot, be downloaded.
    """
    if not files(path, settings):
        _download(path)
    return file_of(path)


def class_names(path: Path) -> tuple[str, ...]:
    """The classes' names; empty where the package is not installed."""
    try:
        info: dict[str, Any] = import_module("medmnist").INFO
    except ImportError:
        return ()
    flag, _, _ = path.name.partition("_")  # a size may follow, as in pathmnist_64
    name_of_label = info.get(flag, {}).get("label", {})
    return tuple(str(name_of_label[number]) for number in sorted(name_of_label, key=int))


def _download(path: Path) -> None:
    package = needed("medmnist", "medmnist", f"medmnist:{path.name}")
    flag, _, size = path.name.partition("_")
    if flag not in package.INFO:
        rule = f"must be one of {', '.join(package.INFO)}, perhaps with _64, _128 or _224"
        raise DataError(f"medmnist:{path.name}: {rule}")
    dataset_class = getattr(package, package.INFO[flag]["python_class"])
    try:
        # One split is enough: the file holds all of them.
        dataset_class(
            split="train",
            download=True,
            root=str(path.parent),
            size=int(size or 28),
        )
    except Exception as error:  # whatever a server answers
        rule = f"medmnist cannot download {path.name}: {said(error)}"
        raise DataError(rule, where=str(path.parent)) from error
