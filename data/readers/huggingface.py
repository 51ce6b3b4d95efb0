"""hf:NAME_OR_PATH: images of the datasets library, of a folder or of its cache; nothing is asked of the network."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data.errors import DataError, either
from data.extras import needed
from data.readers.folder import SPLITS
from data.readers.image_files import DARK, Look, look_at, note_of_cut, refuse_nearly_black, widened
from data.readers.intensity import Stored, UnknownRange
from data.readers.metadata import SampleMetadata
from data.readers.rows import LABEL, LIKE_LABELS, classes_of, cure_of, numbered_labels
from data.readers.splits import Guess, Raw, Split
from data.settings import ROLES, DataSettings
from data.text import said

if TYPE_CHECKING:
    from PIL import Image  # a process without files does not need it

SAVED = ("dataset_dict.json", "state.json")
"""What save_to_disk leaves in a folder."""


def source_of(path: Path, settings: DataSettings) -> str:
    """The folder, or the name that the library has a data set by."""
    root = Path(settings.data_root).expanduser()
    if path.exists() or not path.is_relative_to(root):
        return str(path)
    return str(path.relative_to(root))


@contextmanager
def quietly(where: str) -> Iterator[Any]:
    """The library, without its warnings and bars. Raises DataError for everything that goes wrong inside."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library = needed("datasets", "hf", where)
            library.disable_progress_bars()
            yield library
    except DataError:
        raise
    # A damaged file, or a name that the cache lacks, surfaces as anything.
    except Exception as error:
        rule = "the datasets library cannot read it, without the network but for download = true"
        raise DataError(f"{rule}: {said(error)}", where=where) from error


@contextmanager
def offline(stays: bool) -> Iterator[None]:
    """Let the libraries ask their cache alone, if it `stays` so."""
    # Their modules are changed, as they read the environment variables only when they are imported.
    hub: Any = import_module("huggingface_hub.constants")
    library: Any = import_module("datasets.config")
    before = (hub.HF_HUB_OFFLINE, library.HF_DATASETS_OFFLINE)
    try:
        hub.HF_HUB_OFFLINE = library.HF_DATASETS_OFFLINE = stays
        yield
    finally:
        hub.HF_HUB_OFFLINE, library.HF_DATASETS_OFFLINE = before


@lru_cache(maxsize=4)
def parts_of(source: str, download: bool) -> dict[str, Any]:
    """The library's data sets by split; a single one is called train. Raises DataError."""
    with quietly(source) as library:
        folder = Path(source)
        if folder.is_dir() and any((folder / name).is_file() for name in SAVED):
            loaded = library.load_from_disk(source)
        else:
            with offline(not download):
                loaded = library.load_dataset(source)
        return dict(loaded) if isinstance(loaded, dict) else {"train": loaded}


def roles_of(source: str, part: Any, settings: DataSettings) -> dict[str, str]:
    """The roles of columns: by `columns`, by the roles' own names, or if only one column has a type.

    Raises:
        DataError: a column that is not there, none or several of images, or of what looks like a label.
    """
    stated = settings.column_names
    header = list(part.features)
    shown = ", ".join(header)
    for name in filter(None, stated.values()):
        if name not in header:
            rule = f"there is no column {name!r}, only {shown}"
            raise DataError(f"columns = {settings.columns!r}: {rule}", where=source)
    roles = {}
    for role in ROLES:
        name = stated.get(role, role)
        if name in header:
            roles[role] = name
    images = [name for name, feature in part.features.items() if type(feature).__name__ == "Image"]
    labels = [name for name in header if name.lower() in LIKE_LABELS]
    for role, names, kind in (("path", images, "images"), (LABEL, labels, "labels")):
        if role in stated:
            continue
        if len(names) != 1:
            ways = [cure_of(settings, {role: name}) for name in names or header]
            rule = f"{len(names)} columns look like {kind}, of {shown}"
            raise DataError(rule, where=source, remedy=either(ways))
        roles[role] = names[0]
    path = roles["path"]
    if path not in images:
        rule = f"is of type {part.features[path]}: must be images"
        raise DataError(f"column {path}: {rule}", where=source)
    return roles


def metadata(path: Path, settings: DataSettings) -> SampleMetadata:
    """The rows of all splits, which are the column split where there are several. Raises DataError."""
    source = source_of(path, settings)
    parts = parts_of(source, settings.download)
    first = next(iter(parts.values()))
    roles = roles_of(source, first, settings)
    cells: dict[str, list[str]] = {role: [] for role in roles if role != "path"}
    with quietly(source):
        for part in parts.values():
            for role in cells:
                feature = part.features[roles[role]]
                column = part[roles[role]]
                if role == LABEL and hasattr(feature, "int2str"):  # the library's ClassLabel
                    cells[role] += [feature.int2str(value) for value in column]
                else:
                    cells[role] += [str(value).strip() for value in column]
        if len(parts) > 1:
            roles["split"] = "split"
            cells["split"] = []
            for key, part in parts.items():
                if key.lower() not in SPLITS:
                    rule = f"split {key!r}: must be one of {', '.join(SPLITS)}"
                    raise DataError(rule, where=source)
                cells["split"] += [key] * len(part)
    return SampleMetadata(
        where=source,
        columns=roles,
        cells={role: tuple(words) for role, words in cells.items()},
    )


def read(
    path: Path,
    class_names: tuple[str, ...],
    shape: tuple[int, ...],
    settings: DataSettings,
) -> Raw:
    """The images, brought to `shape`, on their sides. Raises DataError for what cannot be trained on."""
    from data.readers.image_files import joined
    from data.readers.images import Pixels, as_image, brought

    rows = metadata(path, settings)
    if len(shape) != 3 or shape[0] not in (1, 3):
        rule = "must be 1xHEIGHTxWIDTH or 3xHEIGHTxWIDTH for images"
        raise DataError(f"input-shape = {settings.input_shape!r}: {rule}", where=rows.where)
    names = tuple(name.strip() for name in class_names)
    labels = numbered_labels(Path(rows.where), rows.of(LABEL), names, rows.columns[LABEL])
    channels, height, width = shape
    column = rows.columns["path"]
    where = Path(rows.where)

    def opened() -> Iterator[Pixels]:
        for part in parts_of(rows.where, settings.download).values():
            for row in undecoded(part, column):
                stored = stored_in_row(where, row[column], channels, settings)
                yield brought(as_image(where, stored, settings), channels, (width, height))

    with quietly(rows.where):
        try:
            images = joined(opened())
        except UnknownRange as error:
            raise widened(error, look_at_rows(rows, settings)) from None
        wide = images.dtype == np.float32 and not settings.pixel_range
        if wide and images.max() <= DARK:
            refuse_nearly_black(rows.where, look_at_rows(rows, settings))
    return rows.divided(Split(images, np.array(labels, np.int64), rows.where, ""), settings)


def undecoded(part: Any, column: str) -> Any:
    """The rows with the bytes of their images' files: the library itself would cut 16 bits in color to 8.

    Where the data set states a mode for its images, the library converts them to it.
    """
    images = part.select_columns([column])
    feature = part.features[column]
    if feature.mode is not None:
        return images
    return images.cast_column(column, replace(feature, decode=False))


def stored_in_row(
    where: Path, image: Any, channels: int, settings: DataSettings
) -> "Stored | Image.Image":
    """An image of `undecoded`, as the reader of image files gives it. Raises DataError."""
    from data.readers.images import read_with_pil, stored_of_pil

    if not isinstance(image, dict):
        return stored_of_pil(where, image, channels)
    content = image["bytes"]
    if content is None:
        content = Path(image["path"]).read_bytes()
    return read_with_pil(where, BytesIO(content), channels, settings)


def look_at_rows(rows: SampleMetadata, settings: DataSettings) -> Look | None:
    """The range of numbers in images of rows spread over all sites and classes. Raises DataError."""
    column = rows.columns["path"]
    images: list[tuple[Any, int]] = []
    for part in parts_of(rows.where, settings.download).values():
        files = undecoded(part, column)
        images += [(files, row) for row in range(len(files))]

    def stored(index: int) -> object:
        files, row = images[index]
        return stored_in_row(Path(rows.where), files[row][column], 0, settings)

    with quietly(rows.where):
        return look_at(stored, rows.sites_and_labels)


def guess_settings(path: Path, settings: DataSettings) -> Guess:
    """Propose settings from the columns' types and the first image. Raises DataError."""
    from data.readers.images import as_image, brought

    rows = metadata(path, settings)
    parts = parts_of(rows.where, settings.download)
    first = next(iter(parts.values()))
    with quietly(rows.where):
        column = rows.columns["path"]
        where = Path(rows.where)
        stored = stored_in_row(where, undecoded(first, column)[0][column], 0, settings)
        try:
            image = brought(as_image(where, stored, settings), 0)
        except UnknownRange as error:
            raise widened(error, look_at_rows(rows, settings)) from None
        names = getattr(first.features[rows.columns[LABEL]], "names", None)
    notes = []
    if not rows.of("split") and not rows.of("fold"):
        notes.append("nothing says who tests: a fifth does, drawn by split-seed")
    if rows.sites:
        column = rows.columns["site"]
        notes.append(f"the {len(rows.sites)} sites of column {column} are the clients")
    if settings.pixel_range:
        notes += note_of_cut(settings, look_at_rows(rows, settings))
    height, width, channels = image.shape
    classes = names or classes_of(rows.of(LABEL))
    return Guess(
        {"classes": ",".join(classes), "input-shape": f"{channels}x{height}x{width}"},
        tuple(notes),
    )


def files(path: Path, settings: DataSettings) -> list[Path]:
    """The files that the cached copy depends on. Raises DataError where nothing is there."""
    source = source_of(path, settings)
    if Path(source).is_dir():
        return sorted(file for file in Path(source).rglob("*") if file.is_file())
    cached: list[Path] = []
    for part in parts_of(source, settings.download).values():
        cached += [Path(file["filename"]) for file in part.cache_files]
    return cached
