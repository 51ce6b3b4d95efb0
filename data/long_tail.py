"""A long tail over the classes, cut out of a data set whose classes are large enough."""

import numpy as np
from numpy.typing import NDArray

from data.random_draws import draw_of_each_class
from data.rules import require


def long_tail_counts(largest: int, imbalance_factor: float, classes: int) -> NDArray[np.int64]:
    """(classes,): n_k = int(n_max (1/IF)^(k/(C-1))), in label order (Cao et al., LDAM, 2019).

    IF, the imbalance factor, is the largest class over the smallest; 1 makes all equal.
    """
    counts = []
    for label in range(classes):
        share = (1.0 / imbalance_factor) ** (label / (classes - 1.0))
        counts.append(int(largest * share))
    return np.array(counts, np.int64)


def long_tail(
    labels_N: NDArray[np.int64],
    classes: int,
    imbalance_factor: float,
    largest: int,
    draws: np.random.Generator,
) -> NDArray[np.int64]:
    """Sorted indices of a random subset with long-tailed classes; all of them if IF is 1 and `largest` 0.

    `largest` is the size n_max of class 0; 0 is the size of the smallest class.

    Raises:
        SettingError: a class has too few samples, or would be left with none.
    """
    if imbalance_factor == 1 and largest == 0:
        return np.arange(len(labels_N), dtype=np.int64)
    sizes_C = np.bincount(labels_N, minlength=classes)
    size = largest or int(sizes_C.min())
    wanted_C = long_tail_counts(size, imbalance_factor, classes)
    rule = f"would leave class {np.argmin(wanted_C)} without an image, as class 0 has {size}"
    require(int(wanted_C.min()) > 0, "imbalance-factor", imbalance_factor, rule)
    if largest:
        return draw_of_each_class(labels_N, wanted_C, draws, "largest-class", largest)
    return draw_of_each_class(labels_N, wanted_C, draws, "imbalance-factor", imbalance_factor)
