"""A partition saved and loaded again: the same federation, or a refusal."""

import hashlib
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from data import DataError, DataSettings, SettingError, federate, resolve
from data.export import save_partition
from server_app.settings import parse

LONG_TAILED = DataSettings(
    imbalance_factor=10, largest_class=100, min_samples=5, clients=4, holdout_per_class=3
)


@pytest.fixture
def file(tmp_path):
    """The partition of a seed."""
    save_partition(federate(LONG_TAILED, 3), tmp_path / "partition.json")
    return tmp_path / "partition.json"


def loaded(file, seed=0, **stated):
    settings = DataSettings(partition_file=str(file), holdout_per_class=3, **stated)
    return federate(resolve(settings), seed)


def rewrite(file, **changed):
    """Change entries of a file, as by hand: without its checksum."""
    content = json.loads(file.read_text()) | changed
    del content["checksum"]
    file.write_text(json.dumps({key: value for key, value in content.items() if value != "leave"}))


def test_what_is_loaded_is_what_was_saved(file):
    federation = federate(LONG_TAILED, 3)
    for seed in (3, 4):  # the file decides, not the seed
        again = loaded(file, seed)
        assert again.hash == federation.hash and again.clients == 4
        assert np.array_equal(again.counts_KC, federation.counts_KC)
        assert np.array_equal(again.holdout_indices, federation.holdout_indices)
    with pytest.raises(SettingError) as caught:
        federate(DataSettings(partition_file=str(file), holdout_per_class=4), 0)
    assert caught.value.key == "holdout-per-class"


def test_a_file_of_an_earlier_version_is_read_with_its_checksum(file):
    content = json.loads(file.read_text())
    del content["checksum"]
    text = json.dumps(content, sort_keys=True)
    content["checksum"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    file.write_text(json.dumps(content))
    assert loaded(file).hash == federate(LONG_TAILED, 3).hash


def test_domains_stay_with_their_clients(tmp_path):
    settings = DataSettings("digits-scanners", parts_per_domain=3, holdout_per_class=1)
    federation = federate(settings, 0)
    save_partition(federation, tmp_path / "partition.json")
    stated = {"parts_per_domain": 0, "partition_file": str(tmp_path / "partition.json")}
    again = federate(replace(settings, **stated), 0)
    assert (again.hash, again.domains) == (federation.hash, (0, 1, 2, 3) * 3)


def test_resolving_and_the_run_s_id_bind_the_content(file):
    resolved = resolve(DataSettings(partition_file=str(file)))
    assert re.fullmatch(re.escape(str(file)) + "#[0-9a-f]{16}", resolved.partition_file)
    assert resolve(resolved) == resolved
    first = parse({"partition-file": str(file)})
    assert parse(first.flat()).run_id == first.run_id != parse({"clients": 4}).run_id
    save_partition(federate(LONG_TAILED, 4), file)
    assert parse({"partition-file": str(file)}).run_id != first.run_id
    with pytest.raises(DataError) as caught:
        resolve(resolved)
    assert caught.value.where == str(file)


def test_other_data_and_other_numbers_of_clients_are_refused(file):
    with pytest.raises(DataError) as other_data:
        loaded(file, input_shape="1x9x9")
    assert str(file) in str(other_data.value)
    with pytest.raises(SettingError) as other_clients:
        loaded(file, clients=5)
    assert other_clients.value.key == "clients"


CHANGED = {
    "a sample at two clients": {"train": [[0, 1], [1, 2]]},
    "a sample at a client and held out": {"holdout": [0, 1]},
    "a client without a sample": {"train": [[0, 1], []]},
    "a sample beyond the last": {"train": [[0, 1437]]},
    "a test sample twice": {"test": [0, 5, 5]},
    "fractions": {"train": [[0.7, 1.2], [2]]},
    "no test set": {"test": "leave"},
    "domains where there are none": {"domains": [0, 9, 0, 0]},
    "another version": {"fedskew-partition": "\x1b[2J"},
    "other data": {"data": "\x1b[2J\x07"},
}


@pytest.mark.parametrize("case", CHANGED)
def test_a_file_that_is_no_partition_is_one_printable_sentence(file, case):
    rewrite(file)
    loaded(file)
    rewrite(file, checksum="", **CHANGED[case])
    with pytest.raises(DataError) as caught:
        loaded(file)
    assert str(caught.value).startswith(f"{file}: ") and str(caught.value).isprintable()


def test_a_changed_digit_is_noticed_and_a_file_without_a_checksum_is_taken(file):
    before = loaded(file).hash
    content = json.loads(file.read_text())
    content["train"][0].remove(min(content["train"][0]))
    file.write_text(json.dumps(content))
    with pytest.raises(DataError) as caught:
        loaded(file)
    assert caught.value.where == str(file)
    del content["checksum"]
    file.write_text(json.dumps(content))
    assert loaded(file).hash != before
