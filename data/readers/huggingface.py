"""hf:FOLDER: a data set of images that save_to_disk of Hugging Face's datasets library has written."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.errors import DataError, either
from data.packages import needed
from data.readers.catalog import NOT_SAVED
from data.readers.image_files import ImageFiles, letters_of
from data.readers.intensity import Stored
from data.readers.rows import (
    LABEL,
    complete_rows,
    cure_of,
    names_of_classes,
    notes_of_unused,
    roles_of,
)
from data.readers.splits import Manifest, manifest_of_rows
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
    """By split, the rows with the bytes of their images' files: the library itself would cut 16 bits in color to 8."""
    column: str = ""

    def path(self, index: int) -> Path:
        """Return what an error names."""
        return self.root

    def stored(self, index: int, settings: DataSettings) -> "Stored | Image.Image":
        """Return an image as the reader of image files gives it. Raises DataError."""
        from data.readers.images import read_with_pil

        key, row = self.name(index).rsplit("/", 1)
        with quietly(self.root):
            image = self.parts[key][int(row)][self.column]
            content = image["bytes"]
            if content is None:
                content = Path(image["path"]).read_bytes()
            return read_with_pil(self.root, BytesIO(content), self.size[0], settings)


def cells_of(part: Any, name: str) -> list[str]:
    """Return a column of one split as texts, empty where a row has no value or the split no such column."""
    feature = part.features.get(name)
    if feature is None:
        return [""] * len(part)
    if hasattr(feature, "int2str"):  # the library's ClassLabel
        # It writes -1 where a row has no label.
        names = feature.names
        return ["" if value in (None, -1) else names[value].strip() for value in part[name]]
    return ["" if value is None else str(value).strip() for value in part[name]]


def columns_of(
    folder: Path, parts: Parts, settings: DataSettings
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the columns' names by role, that of the images as `path`, and the type of every column by its name.

    Raises:
        DataError: a column that is not there, none or several of images, or one of several values a row.
    """
    features: dict[str, Any] = {}
    for part in parts.values():  # that of test data may lack the labels
        features = {**part.features, **features}
    roles = roles_of(str(folder), list(features), settings)
    used = [name for name in features if name not in settings.ignored_columns]
    images = [name for name in used if type(features[name]).__name__ == "Image"]
    stated = settings.column_names.get("path")
    if stated and stated not in images:
        rule = f"column {stated}: is of type {features[stated]}: must be images"
        raise DataError(rule, where=folder)
    if not stated and len(images) != 1:
        rule = f"{len(images)} columns look like images, of {name_list(used, ', ')}"
        remedy = either([cure_of(settings, {"path": name}) for name in images])
        raise DataError(rule, where=folder, remedy=remedy)
    roles["path"] = stated or images[0]
    for role, name in roles.items():
        feature = features[name]
        is_single = type(feature).__name__ in ("Value", "ClassLabel")
        is_single &= getattr(feature, "dtype", "") not in ("binary", "large_binary")
        if role != "path" and not is_single:  # such as an image, of which each would be a class
            rule = f"column {name}: is of type {feature}: must be one text or number per row"
            raise DataError(rule, where=folder)
    return roles, features


def scan(folder: Path, settings: DataSettings) -> Manifest:
    """Return the rows that are used.

    The splits are the column split where there are several, unless `columns` says otherwise.

    Raises:
        DataError: columns or splits that cannot be used, or a missing value, unless `missing` is drop.
    """
    parts = parts_of(folder)
    roles, features = columns_of(folder, parts, settings)
    others = [name for name in features if name not in roles.values()]
    taken = {*roles, "split"} if len(parts) > 1 else {*roles}
    notes = notes_of_unused(others, taken, settings)
    column = roles.pop("path")
    names = {role: f"column {name}" for role, name in roles.items()}
    with quietly(folder):
        images = {}
        for key, part in parts.items():
            undecoded = replace(part.features[column], decode=False)
            images[key] = part.select_columns([column]).cast_column(column, undecoded)
        by_split = [
            {role: cells_of(part, name) for role, name in roles.items()} for part in parts.values()
        ]
    cells = {role: [text for texts in by_split for text in texts[role]] for role in roles}
    # The names of a ClassLabel are classes whatever they are called.
    class_names = [name.strip() for name in getattr(features[roles[LABEL]], "names", None) or ()]
    known = {*class_names, *names_of_classes(settings)}
    # Beside other labels -1 is a class. Alone it stands for none, as in test data of a competition.
    is_class = any("-1" in texts[LABEL] and len({*texts[LABEL]}) > 1 for texts in by_split)
    if "-1" not in known and not is_class:
        cells[LABEL] = ["" if label == "-1" else label for label in cells[LABEL]]

    places = [(key, row) for key, part in parts.items() for row in range(len(part))]

    def row_of(place: int) -> str:
        key, row = places[place]
        return f"row {row} (from 0) of split {key}"

    kept, dropped = complete_rows(str(folder), cells, names, row_of, settings, class_names)
    columns = {role: [texts[place] for place in kept] for role, texts in cells.items()}
    sides = [places[place][0] for place in kept]
    if len(set(sides)) > 1 and "split" not in settings.column_names:
        columns["split"], names["split"] = sides, "split"
    files = [f"{key}/{row}" for key, row in (places[place] for place in kept)]
    inputs = LibraryImages(
        folder, letters_of(files), settings=settings, parts=images, column=column
    )
    return manifest_of_rows(
        str(folder), inputs, columns, names, settings, dropped, notes, class_names
    )
