"""FedBN's recipe for domains of equal size."""

import numpy as np
from numpy.typing import NDArray

from data.readers.catalog import FAMILIES
from data.readers.image_files import ImageFiles
from data.readers.splits import Raw, Split, stratified
from data.settings import DataError


def fedbn(raws: list[Raw], family: str) -> list[Raw]:
    """The domains cut to equal training sets, as in FedBN (Li et al., 2021).

    Digits are pooled and split 80 to 20 by class with seed 0, then cut to the smallest domain's training set, 7,438 of
    USPS. Of Office-Caltech10 and DomainNet the first 50 % and 5 % of the smallest domain's number are for training (62
    and 105), the last 40 % and 5 % for validation (50 and 105). Test sets stay whole.

    Raises:
        DataError: images of which no training or validation data would be left.
    """
    rules = FAMILIES[family]
    if rules.resplit:
        raws = [_resplit(raw) for raw in raws]
    smallest = min(len(raw.train.labels) for raw in raws)
    train, val = int(rules.train_share * smallest), int(rules.val_share * smallest)
    if train == 0 or (rules.val_share and val == 0):
        raise DataError(
            f"{raws[0].train.where}: recipe fedbn leaves nothing of {smallest} training images"
        )
    cut = []
    for raw in raws:
        order = np.arange(len(raw.train.labels))
        val_split = raw.train.take(order[-val:], "val") if val else None
        cut.append(Raw(raw.train.take(order[:train], "train"), raw.test, val_split))
    return cut


def _resplit(raw: Raw) -> Raw:
    labels: NDArray[np.int64] = np.concatenate([raw.train.labels, raw.test.labels]).astype(np.int64)
    train, test = stratified(labels, raw.train.where)
    if isinstance(raw.train.images, ImageFiles) or isinstance(raw.test.images, ImageFiles):
        raise DataError(f"{raw.train.where}: recipe fedbn needs arrays here, not image files")
    everything = Split(
        np.concatenate([raw.train.images, raw.test.images]), labels, raw.train.where, "train"
    )
    return Raw(everything.take(train, "train"), everything.take(test, "test"))
