"""Whether test images have another size than training images, before both are brought to input-shape."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data.readers import medmnist
from data.readers.catalog import is_own, members
from data.readers.image_files import ImageFiles, size_of
from data.readers.npz import shapes_of
from data.readers.splits import Split
from data.readers.user_data import path_of, read_own
from data.settings import DataError, DataSettings

MOST = 100
"""Files of a split whose heads are read."""
LARGER = 1.5
"""Ratio of typical areas from which sizes of photographs, which all differ, count as different."""

Size = tuple[int, int]
"""Height and width."""


def size_warnings(settings: DataSettings) -> list[str]:
    """Return a sentence for each of one's own npz files, folders and tables whose test images have another size.

    An image that is enlarged is blurred, and one that is shrunken is not, so that a model meets another kind of image
    in the test set than in training.
    """
    found = []
    for name in members(settings.dataset):
        if not is_own(name) or len(settings.shape) != 3:
            continue
        trained, tested = (_sizes(name, split, settings) for split in ("train", "test"))
        if trained and tested and _differ(trained, tested):
            found.append(
                f"{path_of(name, settings)}: test images are of {_typical(tested)} and training images of "
                f"{_typical(trained)} pixels (height x width), and both are brought to input-shape "
                f"{settings.input_shape}"
            )
    return found


def _sizes(name: str, key: str, settings: DataSettings) -> Counter[Size]:
    """Return the sizes of some images of a split with how many have each; none where no file says it."""
    kind = name.split(":", 1)[0]
    path = path_of(name, settings)
    if kind in ("npz", "medmnist"):
        file = path if kind == "npz" else medmnist.file_of(path)
        shape = shapes_of(file, (f"{key}_images",)).get(f"{key}_images", ())
        size = _size_of_array(shape)
        return Counter() if size is None else Counter({size: shape[0]})
    if kind not in ("folder", "csv"):
        return Counter()
    try:
        raw = read_own(name, settings.class_names, settings.shape, settings)
    except DataError:  # there is no such file any more: the run reads a cached copy
        return Counter()
    split: Split = getattr(raw, key)
    if not isinstance(split.images, ImageFiles):
        return Counter()
    count = min(len(split.images), MOST)
    places = np.arange(count) * len(split.images) // count
    sizes = (size_of(Path(split.images.path(place))) for place in places.tolist())
    return Counter(size for size in sizes if size is not None)


def _size_of_array(shape: tuple[int, ...]) -> Size | None:
    """Return height and width of images (N, H, W), (N, H, W, C) or (N, C, H, W); None of vectors."""
    if len(shape) == 3:
        return shape[1], shape[2]
    if len(shape) != 4:
        return None
    channels_first = shape[1] in (1, 3) and shape[3] not in (1, 3)
    return (shape[2], shape[3]) if channels_first else (shape[1], shape[2])


def _differ(trained: Counter[Size], tested: Counter[Size]) -> bool:
    """Return whether no size is in both, and each split has one alone or their areas differ much."""
    if trained.keys() & tested.keys():
        return False
    areas = [
        float(np.median([h * w for h, w in sizes.elements()])) for sizes in _few(trained, tested)
    ]
    return len(trained) == len(tested) == 1 or max(areas) > LARGER * min(areas)


def _few(*every: Counter[Size]) -> Iterator[Counter[Size]]:
    """Yield the sizes with shares instead of numbers, as an npz file may hold millions of images."""
    for sizes in every:
        total = sum(sizes.values())
        yield Counter({size: max(1, MOST * number // total) for size, number in sizes.items()})


def _typical(sizes: Counter[Size]) -> str:
    """Return the most common size, and how many others there are."""
    (height, width), _ = sizes.most_common(1)[0]
    return f"{height}x{width}" + (f" and {len(sizes) - 1} other sizes" if len(sizes) > 1 else "")
