"""hf:NAME_OR_PATH: images of the datasets library, of a folder or of its cache; nothing is asked of the network."""

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from data.errors import DataError, either
from data.extras import needed
from data.readers.image_files import DARK, Look, look_at, note_of_cut, refuse_nearly_black, widened
from data.readers.intensity import Stored, UnknownRange
from data.readers.metadata import SampleMetadata, left_out
from data.readers.rows import (
    DROP_ROWS,
    LABEL,
    all_together,
    check_labels,
    classes_of,
    cure_of,
    is_missing,
    like_labels,
    missing_in,
    names_of_classes,
    numbered_labels,
)
from data.readers.splits import SPLITS, Guess, Raw, Split
from data.settings import ROLES, DataSettings
from data.text import name_list, said

if TYPE_CHECKING:
    from PIL import Image  # a process without files does not need it

Parts = dict[str, Any]
"""The library's data sets by split."""
Cells = dict[str, list[str]]
"""Texts by role, one a row."""
SAVED = ("dataset_dict.json", "state.json")
"""What save_to_disk leaves in a folder."""


def source_of(path: Path, settings: DataSettings) -> str:
    """The folder, or the name that the library has a data set by."""
    root = Path(settings.data_root).expanduser()
    if path.exists() or not path.is_relative_to(root):
        return str(path)
    return str(path.relative_to(root))


@contextmanager
def quietly(where: str, rule: str = "the datasets library cannot read it") -> Iterator[Any]:
    """The library, without its warnings and bars. Raises DataError with `rule` for what goes wrong inside."""
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
def parts_of(source: str, download: bool) -> Parts:
    """The library's data sets by split; a single one is called train. Raises DataError."""
    folder = Path(source)
    if folder.is_absolute() and not folder.exists():
        raise DataError("there is no such folder", where=source)
    if folder.is_dir() and any((folder / name).is_file() for name in SAVED):
        with quietly(source) as library:
            loaded = library.load_from_disk(source)
    else:
        # Where a name is not in the cache, the library asks the network, or says that it may not.
        alone = "" if download else ", without the network but for download = true"
        rule = f"the datasets library cannot read it{alone}"
        with quietly(source, rule) as library, offline(not download):
            loaded = library.load_dataset(source)
    return dict(loaded) if isinstance(loaded, dict) else {"train": loaded}


def features_of(parts: Parts) -> dict[str, Any]:
    """The types of all columns by name. A split may lack some: that of test data the labels."""
    features: dict[str, Any] = {}
    for part in parts.values():
        for name, feature in part.features.items():
            features.setdefault(name, feature)
    return features


def roles_of(source: str, features: Mapping[str, Any], settings: DataSettings) -> dict[str, str]:
    """The roles of columns: by `columns`, by the roles' own names, or if only one column has a type.

    Raises:
        DataError: a column that is not there, none or several of images, or of what looks like a label.
    """
    stated = settings.column_names
    header = list(features)
    shown = name_list(header, ", ")
    for name in filter(None, (*stated.values(), *settings.ignored_columns)):
        if name not in header:
            rule = f"there is no column {name!r}, only {shown}"
            raise DataError(f"columns = {settings.columns!r}: {rule}", where=source)
    header = [name for name in header if name not in settings.ignored_columns]
    roles = {}
    for role in ROLES:
        name = stated.get(role, role)
        if name in header:
            roles[role] = name
    images = [name for name in header if type(features[name]).__name__ == "Image"]
    labels = like_labels(header)
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
        rule = f"is of type {features[path]}: must be images"
        raise DataError(f"column {path}: {rule}", where=source)
    return roles


def refuse_several(source: str, features: Mapping[str, Any], roles: Mapping[str, str]) -> None:
    """Raise DataError for a column with a role that has more or less than one text or number per row."""
    for role, name in roles.items():
        feature = features[name]
        of_bytes = "binary" in str(getattr(feature, "dtype", ""))
        single = type(feature).__name__ in ("Value", "ClassLabel") and not of_bytes
        if role != "path" and not single:
            rule = "must be one text or number per row"
            if role == LABEL:
                rule += ": several labels of one row (multi-label) cannot be trained on"
            raise DataError(f"column {name}: is of type {feature}: {rule}", where=source)


def cells_of(part: Any, name: str) -> list[str]:
    """A column of one split as texts, empty where a row has no value; all are if the split has no such column."""
    feature = part.features.get(name)
    if feature is None:
        return [""] * len(part)
    if hasattr(feature, "int2str"):  # the library's ClassLabel
        names = [feature.int2str(number).strip() for number in range(feature.num_classes)]
        # The library writes -1 where a row has no label.
        return ["" if value in (None, -1) else names[value] for value in part[name]]
    return ["" if value is None else str(value).strip() for value in part[name]]


def unlabelled_in(labels_by_split: Mapping[str, Sequence[str]], names: Collection[str]) -> set[str]:
    """The splits without a label: all are missing, or -1, as test data of a competition have it."""
    only_minus_one = {key for key, labels in labels_by_split.items() if set(labels) == {"-1"}}
    # Of the labels -1 and 1 it is a class.
    is_class = "-1" in names or any(
        "-1" in labels for key, labels in labels_by_split.items() if key not in only_minus_one
    )
    unlabelled = set() if is_class else only_minus_one
    for key, labels in labels_by_split.items():
        if labels and all(is_missing(label, names) for label in labels):
            unlabelled.add(key)
    return unlabelled


def cells_by_split(source: str, parts: Parts, roles: Mapping[str, str]) -> dict[str, Cells]:
    """The columns with a role but the images, by split and role. Raises DataError for a split without images."""
    by_split = {}
    for key, part in parts.items():
        if roles["path"] not in part.features:
            rule = f"split {key} has no column {roles['path']}, only {', '.join(part.features)}"
            raise DataError(rule, where=source)
        with quietly(source):
            by_split[key] = {
                role: cells_of(part, name) for role, name in roles.items() if role != "path"
            }
    return by_split


def rows_of(path: Path, settings: DataSettings) -> tuple[Parts, SampleMetadata]:
    """The rows that are used: by split, and their metadata in the same order.

    The splits are the column split where there are several, unless `columns` says otherwise.

    Raises:
        DataError: columns or splits that cannot be used, or a missing value, unless `missing` is drop.
    """
    source = source_of(path, settings)
    parts = parts_of(source, settings.download)
    features = features_of(parts)
    roles = roles_of(source, features, settings)
    refuse_several(source, features, roles)
    by_split = cells_by_split(source, parts, roles)
    # The names of a ClassLabel are classes whatever they are called.
    of_type = getattr(features[roles[LABEL]], "names", None) or ()
    class_names = frozenset([*names_of_classes(settings), *(name.strip() for name in of_type)])
    labels_by_split = {key: cells[LABEL] for key, cells in by_split.items()}
    unlabelled = unlabelled_in(labels_by_split, class_names)
    if len(unlabelled) == len(parts):
        raise DataError(f"column {roles[LABEL]}: no row has a label", where=source)

    used: Parts = {}
    kept_cells: Cells = {role: [] for role in roles if role != "path"}
    dropped: list[str] = []
    for key, part in parts.items():
        if key in unlabelled:
            found = f"none of the {len(part)} rows of split {key} has a label"
            if settings.missing == "refuse":
                rule = f"column {roles[LABEL]}: its splits are {', '.join(parts)}, and {found}"
                remedy = (DROP_ROWS, " leaves them out")
                raise DataError(rule, where=source, remedy=remedy)
            dropped += [found] * len(part)
            continue
        kept = []
        for row in range(len(part)):
            cells = {role: texts[row] for role, texts in by_split[key].items()}
            place = f"row {row} (from 0) of split {key}"
            missing = missing_in(source, place, cells, roles, class_names, settings)
            if missing:
                dropped.append(missing)
                continue
            kept.append(row)
            for role, cell in cells.items():
                kept_cells[role].append(cell)
        if kept:
            used[key] = part if len(kept) == len(part) else part.select(kept)

    check_labels(source, roles[LABEL], kept_cells[LABEL], class_names)
    if len(used) > 1 and "split" not in settings.column_names:
        check_splits(source, used, settings)
        roles["split"] = "split"
        kept_cells["split"] = [key for key, part in used.items() for _ in range(len(part))]
    metadata = SampleMetadata(
        where=source,
        columns=roles,
        cells={role: tuple(words) for role, words in kept_cells.items()},
        left_out=left_out(dropped),
    )
    return used, metadata


def check_splits(source: str, parts: Parts, settings: DataSettings) -> None:
    """Raise DataError for a split whose name says neither train, test nor validation."""
    for key in parts:
        if key.lower() not in SPLITS:
            rule = f"its splits are {', '.join(parts)}, and {key} is none of {', '.join(SPLITS)}"
            raise DataError(rule, where=source, remedy=all_together(settings))


def read(
    path: Path,
    class_names: tuple[str, ...],
    shape: tuple[int, ...],
    settings: DataSettings,
) -> Raw:
    """The images, brought to `shape`, on their sides. Raises DataError for what cannot be trained on."""
    parts, rows = rows_of(path, settings)
    if len(shape) != 3 or shape[0] not in (1, 3):
        rule = "must be 1xHEIGHTxWIDTH or 3xHEIGHTxWIDTH for images"
        raise DataError(f"input-shape = {settings.input_shape!r}: {rule}", where=rows.where)
    names = tuple(name.strip() for name in class_names)
    labels = numbered_labels(Path(rows.where), rows.of(LABEL), names, rows.columns[LABEL])
    images = pixels_of(parts, rows, shape, settings)
    return rows.divided(Split(images, np.array(labels, np.int64), rows.where, ""), settings)


def pixels_of(
    parts: Parts, rows: SampleMetadata, shape: tuple[int, ...], settings: DataSettings
) -> NDArray[np.generic]:
    """Return the images of all rows, brought to `shape`. Raises DataError for one that cannot be used."""
    from data.readers.image_files import joined
    from data.readers.images import Pixels, as_image, brought

    channels, height, width = shape
    column = rows.columns["path"]
    where = Path(rows.where)

    def opened() -> Iterator[Pixels]:
        for part in parts.values():
            for row in undecoded(part, column):
                stored = stored_in_row(where, row[column], channels, settings)
                yield brought(as_image(where, stored, settings), channels, (width, height))

    with quietly(rows.where):
        try:
            images = joined(opened())
        except UnknownRange as error:
            raise widened(error, look_at_rows(parts, rows, settings)) from None
        wide = images.dtype == np.float32 and not settings.pixel_range
        if wide and images.max() <= DARK:
            refuse_nearly_black(rows.where, look_at_rows(parts, rows, settings))
    return images


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


def look_at_rows(parts: Parts, rows: SampleMetadata, settings: DataSettings) -> Look | None:
    """The range of numbers in images of rows spread over all sites and classes. Raises DataError."""
    column = rows.columns["path"]
    images: list[tuple[Any, int]] = []
    for part in parts.values():
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

    parts, rows = rows_of(path, settings)
    first = next(iter(parts.values()))
    with quietly(rows.where):
        column = rows.columns["path"]
        where = Path(rows.where)
        stored = stored_in_row(where, undecoded(first, column)[0][column], 0, settings)
        try:
            image = brought(as_image(where, stored, settings), 0)
        except UnknownRange as error:
            raise widened(error, look_at_rows(parts, rows, settings)) from None
        names = getattr(features_of(parts)[rows.columns[LABEL]], "names", None)
    notes = [rows.left_out] if rows.left_out else []
    if not rows.of("split") and not rows.of("fold"):
        notes.append("nothing says who tests: a fifth does, drawn by split-seed")
    if rows.sites:
        column = rows.columns["site"]
        notes.append(f"the {len(rows.sites)} sites of column {column} are the clients")
    if settings.pixel_range:
        notes += note_of_cut(settings, look_at_rows(parts, rows, settings))
    height, width, channels = image.shape
    classes = names or classes_of(rows.of(LABEL))
    return Guess(
        {"classes": name_list(classes), "input-shape": f"{channels}x{height}x{width}"},
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
