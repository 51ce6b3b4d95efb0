"""hf:FOLDER: a data set of images that save_to_disk of Hugging Face's datasets library has written."""

import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.errors import DataError, either
from data.packages import needed
from data.readers.catalog import NOT_SAVED
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


@contextmanager
def quietly(where: Path) -> Iterator[Any]:
    """The library, without its warnings and bars. Raises DataError for what goes wrong inside."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library = needed("datasets", "hf", where)
            library.disable_progress_bars()
            yield library
    except DataError:
        raise
    # A damaged file surfaces as anything.
    except Exception as error:
        rule = f"the datasets library cannot read it: {said(error)}"
        raise DataError(rule, where=where) from error


@lru_cache(maxsize=4)
def parts_of(folder: Path) -> Parts:
    """Return the library's data sets by split; a single one is called train. Raises DataError."""
    if not is_saved(folder):
        raise DataError(NOT_SAVED, where=folder)
    with quietly(folder) as library:
        loaded = library.load_from_disk(str(folder))
    return dict(loaded) if isinstance(loaded, dict) else {"train": loaded}


def is_saved(folder: Path) -> bool:
    """Return whether save_to_disk has written the folder."""
    return any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))


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
        with quietly(self.root):
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


def lacks_labels(labels: Sequence[str], names: Collection[str]) -> bool:
    """Return whether no label is one of the classes `names` or of others.

    All are missing, or -1, as test data of a competition have it.
    """
    other = () if "-1" in names else ("-1",)
    return all(is_missing(label, names) or label in other for label in labels)


def columns_of(folder: Path, parts: Parts, settings: DataSettings) -> tuple[dict[str, str], Any]:
    """Return the columns' names by role, that of the images as `path`, and the type of the labels.

    Raises:
        DataError: a column that is not there, none or several of images, or one of several values a row.
    """
    features: dict[str, Any] = {}
    for part in parts.values():  # that of test data may lack the labels
        features = {**part.features, **features}
    roles = roles_of(str(folder), list(features), settings)
    used = [name for name in features if name not in settings.ignored_columns]
    images = [name for name in used if type(features[name]).__name__ == "Image"]
    if not settings.column_names.get("path"):
        if len(images) != 1:
            rule = f"{len(images)} columns look like images, of {name_list(used, ', ')}"
            ways = [cure_of(settings, {"path": name}) for name in images or used]
            raise DataError(rule, where=folder, remedy=either(ways))
        roles["path"] = images[0]
    for role, name in roles.items():
        feature = features[name]
        is_single = type(feature).__name__ in ("Value", "ClassLabel")
        is_single &= "binary" not in str(getattr(feature, "dtype", ""))
        rule = "must be one text or number per row"
        if role == "path":
            is_single, rule = name in images, "must be images"
        if not is_single:
            raise DataError(f"column {name}: is of type {feature}: {rule}", where=folder)
    return roles, features[roles[LABEL]]


def scan(folder: Path, settings: DataSettings) -> Manifest:
    """Return the rows that are used.

    The splits are the column split where there are several, unless `columns` says otherwise.

    Raises:
        DataError: columns or splits that cannot be used, or a missing value, unless `missing` is drop.
    """
    parts = parts_of(folder)
    roles, type_of_labels = columns_of(folder, parts, settings)
    column = roles.pop("path")
    names = {role: f"column {name}" for role, name in roles.items()}
    # The names of a ClassLabel are classes whatever they are called.
    of_type = [name.strip() for name in getattr(type_of_labels, "names", None) or ()]
    class_names = {*of_type, *names_of_classes(settings)}

    with quietly(folder):
        images = {key: undecoded(part, column) for key, part in parts.items()}
        by_split = {
            key: {role: cells_of(part, name) for role, name in roles.items()}
            for key, part in parts.items()
        }
    different = [{*cells[LABEL]} for cells in by_split.values()]
    # Of the labels -1 and 1, say, -1 is a class, also where a split has no other.
    is_class = any("-1" in labels and len(labels) > 1 for labels in different)
    known = class_names | {"-1"} if is_class else class_names

    files: list[str] = []
    sides: list[str] = []
    columns: dict[str, list[str]] = {role: [] for role in roles}
    dropped: list[str] = []
    for key, cells in by_split.items():
        rows = len(cells[LABEL])
        if rows and lacks_labels(cells[LABEL], known):
            found = f"none of the {rows} rows of split {key} has a label"
            if settings.missing != "drop":
                rule = f"{names[LABEL]}: its splits are {', '.join(parts)}, and {found}"
                raise DataError(rule, where=folder, remedy=(DROP_ROWS, " leaves them out"))
            dropped += [found] * rows
            continue

        def row_of(place: int, key: str = key) -> str:
            return f"row {place} (from 0) of split {key}"

        kept, without = complete_rows(str(folder), cells, names, row_of, settings, class_names)
        dropped += without
        files += [f"{key}/{row}" for row in kept]
        sides += [key] * len(kept)
        for role, texts in cells.items():
            columns[role] += [texts[row] for row in kept]
    check_labels(str(folder), names[LABEL], columns[LABEL], class_names)
    if len(set(sides)) > 1 and "split" not in settings.column_names:
        columns["split"], names["split"] = sides, "split"
    return Manifest(
        where=str(folder),
        inputs=LibraryImages(
            folder, letters_of(files), ANY_SIZE, settings=settings, parts=images, column=column
        ),
        columns=columns,
        names=names,
        classes=of_type or classes_of(columns[LABEL]),
        notes=tuple(left_out(dropped)),
    )
