"""A partition saved and loaded again: the same federation, or a refusal."""

import json
import re

import numpy as np
import pytest

from data import DataError, DataSettings, SettingError, federate, resolve
from data.partition_files import save_partition
from server_app.settings import parse

LONG_TAILED = DataSettings(imbalance_factor=10, largest_class=100, min_samples=5, clients=4)


@pytest.fixture
def file(tmp_path):
    """The partition of a seed."""
    save_partition(federate(LONG_TAILED, 3).train_indices, tmp_path / "partition.json")
    return tmp_path / "partition.json"


def loaded(file, seed=0, **stated):
    return federate(resolve(DataSettings(partition_file=str(file), **stated)), seed)


def test_what_is_loaded_is_what_was_saved(file):
    federation = federate(LONG_TAILED, 3)
    for seed in (3, 4):  # the file decides, not the seed
        again = loaded(file, seed)
        assert again.hash == federation.hash and again.clients == 4
        assert np.array_equal(again.counts_KC, federation.counts_KC)


def test_lists_of_ones_own_are_taken_in_any_order(tmp_path):
    file = tmp_path / "own.json"
    file.write_text("[[7, 0, 2], [1]]")
    federation = loaded(file)
    assert [part.tolist() for part in federation.train_indices] == [[0, 2, 7], [1]]
    assert len(federation.global_test) == 360 and federation.domains is None


def test_resolving_and_the_run_s_id_bind_the_content(file):
    resolved = resolve(DataSettings(partition_file=str(file)))
    assert re.fullmatch(re.escape(str(file)) + "#[0-9a-f]{64}", resolved.partition_file)
    assert resolve(resolved) == resolved
    first = parse({"partition-file": str(file)})
    assert parse(first.flat()).run_id == first.run_id != parse({"clients": 4}).run_id
    save_partition(federate(LONG_TAILED, 4).train_indices, file)
    assert parse({"partition-file": str(file)}).run_id != first.run_id
    with pytest.raises(DataError) as caught:
        resolve(resolved)
    assert caught.value.where == str(file)


@pytest.mark.parametrize(
    ("stated", "key"),
    [({"clients": 5}, "clients"), ({"holdout_per_class": 2}, "holdout-per-class")],
)
def test_a_setting_that_contradicts_the_file_is_refused(file, stated, key):
    with pytest.raises(SettingError) as caught:
        loaded(file, **stated)
    assert caught.value.key == key


CHANGED = {
    "a sample at two clients": [[0, 1], [1, 2]],
    "a sample twice": [[0, 0]],
    "a client without a sample": [[0, 1], []],
    "no client": [],
    "a sample beyond the last": [[0, 1437]],
    "beyond 64 bits": [[0, 2**64]],
    "a negative one": [[0, -1]],
    "fractions": [[0.7, 1.2], [2]],
    "texts": [["\x1b[2J"]],
    "another form": {"train": [[0]]},
}


@pytest.mark.parametrize("case", CHANGED)
def test_a_file_that_is_no_partition_is_one_printable_sentence(file, case):
    file.write_text(json.dumps(CHANGED[case]))
    with pytest.raises(DataError) as caught:
        loaded(file)
    assert str(caught.value).startswith(f"{file}: ") and str(caught.value).isprintable()


def test_a_file_in_the_home_of_nobody_is_refused_by_its_key():
    with pytest.raises(SettingError) as caught:
        resolve(DataSettings(partition_file="~nobody-is-called-so/partition.json"))
    assert caught.value.key == "partition-file"
