"""A partition saved and loaded again: the same federation, or a refusal."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from test_table import WRITTEN

from data import DataError, DataSettings, SettingError, federate, load, resolve
from data.export import partition_by_table, save_partition
from server_app.settings import parse

LONG_TAILED = DataSettings(
    imbalance_factor=10, largest_class=100, min_samples=5, clients=4, test_images=50
)


def test_what_is_loaded_is_what_was_saved(tmp_path):
    federation = federate(LONG_TAILED, 3)
    save_partition(federation, tmp_path / "partition.json")
    for seed in (3, 4):
        loaded = federate(DataSettings(partition_file=str(tmp_path / "partition.json")), seed)
        assert loaded.hash == federation.hash, "the file decides, not the seed"
        assert np.array_equal(loaded.counts_KC, federation.counts_KC) and loaded.clients == 4
        assert np.array_equal(loaded.global_test, federation.global_test)


def test_the_hold_out_stays_at_the_server(tmp_path):
    federation, file = (
        federate(replace(LONG_TAILED, holdout_per_class=5), 3),
        tmp_path / "partition.json",
    )
    save_partition(federation, file)
    loaded = federate(DataSettings(partition_file=str(file), holdout_per_class=5), 0)
    assert loaded.hash == federation.hash and len(loaded.holdout()) == 50
    assert np.array_equal(loaded.holdout_indices, federation.holdout_indices)
    for other in (0, 4):
        with pytest.raises(
            SettingError,
            match=rf"^holdout-per-class = {other}: must be the partition file's: .* 5, 5 ",
        ):
            federate(DataSettings(partition_file=str(file), holdout_per_class=other), 0)
    output = json.loads(file.read_text())
    del output["checksum"]  # as in a file written by hand
    file.write_text(json.dumps({**output, "holdout": output["train"][0][:1]}))
    with pytest.raises(DataError, match="no sample be at two clients"):
        federate(DataSettings(partition_file=str(file)), 0)


@pytest.mark.parametrize("way", WRITTEN)
def test_a_table_of_clients_is_read_as_spreadsheets_write_it(tmp_path, way):
    write, encoding = WRITTEN[way]
    file = tmp_path / "who.csv"
    rows = ("sample,client", "5,north", "0,south", "3,north")
    file.write_bytes("\r\n".join(map(write, rows)).encode(encoding))
    saved = partition_by_table(file, load(LONG_TAILED))
    assert [part.tolist() for part in saved.train] == [[3, 5], [0]]


def test_the_separator_of_a_table_of_clients_is_the_one_by_which_its_columns_have_names(tmp_path):
    file = tmp_path / "who.csv"
    for rows in (
        ["sample;client;remarks, if any", "5;north;", "0;south;a, b", "3;north;"],
        ["sample,client,remarks; if any", "5,north,", "0,south,a; b", "3,north,"],
    ):
        file.write_text("\n".join(rows))
        saved = partition_by_table(file, load(LONG_TAILED))
        assert [part.tolist() for part in saved.train] == [[3, 5], [0]]


def test_domains_stay_with_their_clients(tmp_path):
    for name in ("mnist", "usps"):
        pixels, labels = (
            np.random.default_rng(len(name)).integers(0, 256, (60, 16, 16), np.uint8),
            np.arange(60) % 10,
        )
        arrays = {
            "train_images": pixels,
            "train_labels": labels,
            "test_images": pixels,
            "test_labels": labels,
        }
        np.savez(tmp_path / f"{name}.npz", **arrays)
    settings = DataSettings(
        "domains:mnist,usps", str(tmp_path), parts_per_domain=3, holdout_per_class=1
    )
    federation = federate(settings, 0)
    assert len(federation.holdout()) == 2 * 10, "of every domain"
    save_partition(federation, tmp_path / "partition.json")
    loaded = federate(
        replace(settings, parts_per_domain=0, partition_file=str(tmp_path / "partition.json")), 0
    )
    assert (loaded.hash, loaded.domains) == (federation.hash, (0, 1) * 3)
    assert all(
        np.array_equal(a, b)
        for a, b in zip(loaded.test_indices, federation.test_indices, strict=True)
    )
    with pytest.raises(
        SettingError, match=r"^unseen-domain = 'usps': cannot be stated in a partition file$"
    ):
        save_partition(
            federate(replace(settings, unseen_domain="usps"), 0), tmp_path / "other.json"
        )


def test_resolving_and_the_run_s_id_bind_the_content(tmp_path):
    file = tmp_path / "partition.json"
    save_partition(federate(LONG_TAILED, 3), file)
    resolved = resolve(DataSettings(partition_file=str(file)))
    assert (resolved.partition, resolved.clients) == ("file", 4)
    assert re.fullmatch(re.escape(str(file)) + "#[0-9a-f]{16}", resolved.partition_file)
    assert resolve(resolved) == resolved
    first = parse({"partition-file": str(file)})
    assert parse(first.flat()).run_id == first.run_id != parse({"clients": 4}).run_id
    save_partition(federate(LONG_TAILED, 4), file)
    assert parse({"partition-file": str(file)}).run_id != first.run_id
    with pytest.raises(DataError, match="is not the partition file that the run began with"):
        resolve(resolved)


def test_what_the_file_says_reaches_no_terminal_as_it_is(tmp_path):
    file = tmp_path / "partition.json"
    save_partition(federate(LONG_TAILED, 3), file)
    content = json.loads(file.read_text())
    del content["checksum"]
    for key, value in (("data", "\x1b[2J\x07"), ("fedskew-partition", "\x1b[2J")):
        file.write_text(json.dumps({**content, key: value}))
        with pytest.raises(DataError, match=r" \\x1b\[2J") as refusal:
            federate(DataSettings(partition_file=str(file)), 0)
        assert str(refusal.value).isprintable()


def test_other_data_and_other_numbers_of_clients_are_refused(tmp_path):
    file = tmp_path / "partition.json"
    save_partition(federate(LONG_TAILED, 3), file)
    with pytest.raises(
        DataError, match=f"^{re.escape(str(file))}: is a partition of other data: their hash is "
    ):
        federate(DataSettings(partition_file=str(file), input_shape="1x9x9"), 0)
    with pytest.raises(
        SettingError, match=r"^clients = 5: must be 0 or 4, the clients of partition-file$"
    ):
        resolve(DataSettings(partition_file=str(file), clients=5))
    with pytest.raises(SettingError, match=r"^FILE = .*: cannot be written: "):
        save_partition(federate(LONG_TAILED, 3), tmp_path / "nowhere" / "partition.json")


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda content: {**content, "train": [[0, 1], [1, 2]]}, "no sample be at two clients"),
        (
            lambda content: {**content, "train": [[0, 1], []]},
            "every client must hold at least one sample",
        ),
        (
            lambda content: {**content, "train": [[0, 5000]]},
            "its samples must be 0..1436, at least one",
        ),
        (lambda content: {**content, "test": [-1]}, "its samples must be 0..359, at least one"),
        (
            lambda content: {**content, "fedskew-partition": 9},
            "version 9 of partition files is not known",
        ),
        (
            lambda content: {key: content[key] for key in content if key != "test"},
            "is no partition file as `fedskew",
        ),
        (lambda content: {**content, "test": [0, 5, 5]}, "no sample may be in the test set twice"),
        (
            lambda content: {**content, "train": [[0.7, 1.2], [2]]},
            "is no partition file as `fedskew",
        ),
        (lambda content: {**content, "train": [[True], [2]]}, "is no partition file as `fedskew"),
        (lambda content: {**content, "train": [[[1]], [2]]}, "is no partition file as `fedskew"),
        (lambda content: {**content, "test": [1.0]}, "is no partition file as `fedskew"),
        (
            lambda content: {**content, "domains": [0.5, 0, 0, 0]},
            "is no partition file as `fedskew",
        ),
        (lambda content: {**content, "domains": [0, 9, 0, 0]}, "the data have no domains"),
        (
            lambda content: {"train": []},
            "is no partition file as `fedskew data save-partition` writes it",
        ),
        (lambda content: [1], "is no partition file as `fedskew data save-partition` writes it"),
    ],
)
def test_a_file_that_is_no_partition_is_one_sentence(tmp_path, change, rule):
    file = tmp_path / "partition.json"
    save_partition(federate(LONG_TAILED, 3), file)
    content = json.loads(file.read_text())
    del content["checksum"]
    file.write_text(json.dumps(change(content)))
    with pytest.raises(DataError, match=f"^{re.escape(str(file))}: .*{re.escape(rule)}"):
        federate(DataSettings(partition_file=str(file)), 0)


def test_a_changed_digit_is_noticed_and_a_file_without_a_checksum_is_taken(tmp_path):
    file = tmp_path / "partition.json"
    save_partition(federation := federate(LONG_TAILED, 3), file)
    content = json.loads(file.read_text())
    content["train"][0].remove(min(content["train"][0]))
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match="is not as it was written: its checksum is another"):
        federate(DataSettings(partition_file=str(file)), 0)
    save_partition(federation, file)
    content = json.loads(file.read_text())
    del content["checksum"]
    file.write_text(json.dumps(content))
    assert federate(DataSettings(partition_file=str(file)), 0).hash == federation.hash
