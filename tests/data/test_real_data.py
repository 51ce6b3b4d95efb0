"""The real data, where the environment variable FEDSKEW_DATA_ROOT names the folder that holds them."""

import os

import numpy as np
import pytest

from data import DataSettings, federate
from data.long_tail import long_tail_counts

ROOT = os.environ.get("FEDSKEW_DATA_ROOT", "")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not ROOT, reason="FEDSKEW_DATA_ROOT is not set")]


def test_digits_by_fedbn_s_recipe():
    """Sizes of FedBN's files: 56,000 / 14,000 of MNIST and 7,438 / 1,860 of USPS, the training sets cut to 7,438."""
    settings = DataSettings("domains:mnist,usps", ROOT, recipe="fedbn", parts_per_domain=10)
    federation = federate(settings, 0)
    assert np.bincount(federation.dataset.train_domains).tolist() == [7438, 7438]
    assert np.bincount(federation.dataset.test_domains).tolist() == [14000, 1860]
    assert (
        set(federation.counts_KC.sum(axis=1).tolist()) == {743, 744}
        and federation.counts_KC.sum() == 2 * 7438
    )
    parts = federation.counts_KC[0::2]  # of MNIST
    assert (parts.max(axis=0) - parts.min(axis=0)).max() <= 2


def test_creff_s_partition_of_cifar10():
    tailed = DataSettings("cifar10", ROOT, partition="feddf", alpha=0.5, clients=20,
                          imbalance_factor=100, largest_class=5000)  # fmt: skip
    federation = federate(tailed, 7)
    assert federation.counts_KC.sum(axis=0).tolist() == long_tail_counts(5000, 100, 10).tolist()
    assert set(federation.counts_KC.sum(axis=1).tolist()) == {620, 621}
