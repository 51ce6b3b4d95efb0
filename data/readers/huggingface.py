"""hf:NAME_OR_PATH: images of the datasets library, of a folder or of its cache; nothing is asked of the network."""

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.errors import DataError, either
from data.extras import needed
from data.readers.image_files import ANY_SIZE, ImageFiles, letters_of
from data.readers.intensity import Stored
from data.readers.rows import (
    DROP_ROWS,
    LABEL,
    check_labels,
    classes_of,
    complete_rows,
    cure_of,
    is_missing,
    left_out,
    names_of_classes,
    roles_of,
)
from data.readers.splits import Manifest
from data.settings import DataSettings
from data.text import name_list, said

if TYPE_CHECKING:
    from PIL import Image  # a process without files does not need it

Parts = dict[str, Any]
"""The library's data sets by split."""
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


@dataclass(frozen=True, eq=False)
class LibraryImages(ImageFiles):
    """Images of the library's rows; the name of one is SPLIT/ROW."""

    parts: Parts = field(default_factory=dict)
    """By split, the rows with the images alone, as the bytes of their files where the library lets them be."""
    column: str = ""

    def path(self, index: int) -> Path:
        """Return what an error names."""
        return self.root

    def stored(self, index: int, settings: DataSettings) -> "Stored | Image.Image":
        """Return an image as the reader of image files gives it. Raises DataError."""
        from data.readers.images import read_with_pil, stored_of_pil

        key, row = self.name(index).rsplit("/", 1)
        with quietly(str(self.root)):
            image = self.parts[key][int(row)][self.column]
            if not isinstance(image, dict):
                return stored_of_pil(self.root, image, self.size[0])
            content = image["bytes"]
            if content is None:
                content = Path(image["path"]).read_bytes()
            return read_with_pil(self.root, BytesIO(content), self.size[0], settings)


def undecoded(part: Any, column: str) -> Any:
    """Return the rows with the bytes of their images' files: the library itself would cut 16 bits in color to 8.

    Where the data set states a mode for its images, the library converts them to it.
    """
    images = part.select_columns([column])
    feature = part.features[column]
    if feature.mode is not None:
        return images
    return images.cast_column(column, replace(feature, decode=False))


def cells_of(part: Any, name: str) -> list[str]:
    """Return a column of one split as texts, empty where a row has no value or the split no such column."""
    feature = part.features.get(name)
    if feature is None:
        return [""] * len(part)
    if hasattr(feature, "int2str"):  # the library's ClassLabel
        names = [feature.int2str(number).strip() for number in range(feature.num_classes)]
        # The library writes -1 where a row has no label.
        return ["" if value in (None, -1) else names[value] for value in part[name]]
    return ["" if value is None else str(value).strip() for value in part[name]]


def unlabelled_in(labels_by_split: Mapping[str, Sequence[str]], names: Collection[str]) -> set[str]:
    """Return the splits without a label: all are missing, or -1, as test data of a competition have it."""
    only_minus_one = {key for key, labels in labels_by_split.items() if set(labels) == {"-1"}}
    others = labels_by_split.keys() - only_minus_one
    # Of the labels -1 and 1 it is a class.
    is_class = "-1" in names or any("-1" in labels_by_split[key] for key in others)
    unlabelled = set() if is_class else only_minus_one
    for key, labels in labels_by_split.items():
        if labels and all(is_missing(label, names) for label in labels):
            unlabelled.add(key)
    return unlabelled


def columns_of(source: str, parts: Parts, settings: DataSettings) -> tuple[dict[str, str], Any]:
    """Return the columns' names by role, that of the images as `path`, and the type of the labels.

    Raises:
        DataError: a column that is not there, none or several of images, or one of several values a row.
    """
    features: dict[str, Any] = {}
    for part in parts.values():  # that of test data may lack the labels
        features = {**part.features, **features}
    roles = roles_of(source, list(features), settings)
    used = [name for name in features if name not in settings.ignored_columns]
    images = [name for name in used if type(features[name]).__name__ == "Image"]
    if not settings.column_names.get("path"):
        if len(images) != 1:
            rule = f"{len(images)} columns look like images, of {name_list(used, ', ')}"
            ways = [cure_of(settings, {"path": name}) for name in images or used]
            raise DataError(rule, where=source, remedy=either(ways))
        roles["path"] = images[0]
    for role, name in roles.items():
        feature = features[name]
        of_bytes = "binary" in str(getattr(feature, "dtype", ""))
        single = type(feature).__name__ in ("Value", "ClassLabel") and not of_bytes
        if name not in images if role == "path" else not single:
            rule = "must be images" if role == "path" else "must be one text or number per row"
            raise DataError(f"column {name}: is of type {feature}: {rule}", where=source)
    for key, part in parts.items():
        if roles["path"] not in part.features:
            raise DataError(f"split {key} has no column {roles['path']}", where=source)
    return roles, features[roles[LABEL]]


def scan(path: Path, settings: DataSettings) -> Manifest:
    """Return the rows that are used.

    The splits are the column split where there are several, unless `columns` says otherwise.

    Raises:
        DataError: columns or splits that cannot be used, or a missing value, unless `missing` is drop.
    """
    source = source_of(path, settings)
    parts = parts_of(source, settings.download)
    roles, type_of_labels = columns_of(source, parts, settings)
    column = roles.pop("path")
    names = {role: f"column {name}" for role, name in roles.items()}
    by_split = {}
    with quietly(source):
        for key, part in parts.items():
            by_split[key] = {role: cells_of(part, name) for role, name in roles.items()}
    # The names of a ClassLabel are classes whatever they are called.
    of_type = [name.strip() for name in getattr(type_of_labels, "names", None) or ()]
    class_names = {*of_type, *names_of_classes(settings)}
    unlabelled = unlabelled_in({key: cells[LABEL] for key, cells in by_split.items()}, class_names)
    if len(unlabelled) == len(parts):
        raise DataError(f"{names[LABEL]}: no row has a label", where=source)

    files: list[str] = []
    columns: dict[str, list[str]] = {role: [] for role in roles}
    dropped: list[str] = []
    for key, cells in by_split.items():
        if key in unlabelled:
            found = f"none of the {len(parts[key])} rows of split {key} has a label"
            if settings.missing != "drop":
                rule = f"{names[LABEL]}: its splits are {', '.join(parts)}, and {found}"
                raise DataError(rule, where=source, remedy=(DROP_ROWS, " leaves them out"))
            dropped += [found] * len(parts[key])
            continue

        def row_of(place: int, key: str = key) -> str:
            return f"row {place} (from 0) of split {key}"

        kept, without = complete_rows(source, cells, names, row_of, settings, class_names)
        dropped += without
        files += [f"{key}/{row}" for row in kept]
        for role, texts in cells.items():
            columns[role] += [texts[row] for row in kept]
    check_labels(source, names[LABEL], columns[LABEL], class_names)
    sides = [name.rsplit("/", 1)[0] for name in files]
    if len(set(sides)) > 1 and "split" not in settings.column_names:
        columns["split"], names["split"] = sides, "split"
    images = LibraryImages(
        Path(source),
        letters_of(files),
        ANY_SIZE,
        settings=settings,
        parts={key: undecoded(part, column) for key, part in parts.items()},
        column=column,
    )
    return Manifest(
        where=source,
        inputs=images,
        columns=columns,
        names=names,
        classes=of_type or classes_of(columns[LABEL]),
        notes=tuple(left_out(dropped)),
    )


def files(path: Path, settings: DataSettings) -> list[Path]:
    """Return the files that the cached copy depends on. Raises DataError where nothing is there."""
    source = source_of(path, settings)
    if Path(source).is_dir():
        return sorted(file for file in Path(source).rglob("*") if file.is_file())
    cached: list[Path] = []
    for part in parts_of(source, settings.download).values():
        cached += [Path(file["filename"]) for file in part.cache_files]
    return cached
