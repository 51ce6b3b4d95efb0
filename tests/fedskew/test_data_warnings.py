"""Own data that would be read wrongly without a word: each command that reads them refuses or warns."""

import json
from dataclasses import replace

import numpy as np
import pytest

from data import DataError, DataSettings, federate
from data.data_warnings import refuse_untrainable, warnings_of
from fedskew.engines.local import LocalGrid
from server_app.app import run_and_warn
from server_app.settings import parse, parse_texts

POOL = np.random.default_rng(5).integers(0, 256, (200, 6, 5), np.uint8)


def write(path, change=lambda arrays: None, **more):
    """Write 80 training and 40 test images of two classes, changed, and return settings that deal them to clients."""
    arrays = {
        "train_images": POOL[:80].copy(),
        "train_labels": np.arange(80) % 2,
        "test_images": POOL[80:120].copy(),
        "test_labels": np.arange(40) % 2,
    }
    change(arrays)
    np.savez(path, **arrays)
    stated = {"classes": "cat,dog", "input_shape": "1x6x5", "partition": "iid", "clients": 2}
    return DataSettings(f"npz:{path}", **{**stated, **more})


def found(settings):
    """Return the warnings, where nothing is refused."""
    federation = federate(settings, 0)
    refuse_untrainable(settings, federation)
    return warnings_of(settings, federation)


def words(settings):
    """Return the settings as a command takes them."""
    pairs = [f"dataset={settings.dataset}", f"classes={settings.classes}", "partition=iid"]
    pairs += [f"input-shape={settings.input_shape}", "clients=2"]
    return [word for pair in pairs for word in ("--set", pair)]


def copied_tests(number):
    def change(arrays):
        arrays["test_images"][:number] = arrays["train_images"][:number]

    return change


def one_class(arrays):
    arrays["train_labels"][:] = 1


def a_fox(arrays):
    arrays["train_labels"][0] = 2


def test_data_of_which_nothing_is_odd(tmp_path):
    assert found(write(tmp_path / "own.npz")) == []
    assert found(DataSettings()) == []


def test_what_is_odd_is_counted(tmp_path):
    """Copies of all test images are refused, and a class without a test sample is warned of."""
    with pytest.raises(DataError) as raised:
        found(write(tmp_path / "own.npz", copied_tests(40)))
    counted = "all 40 test images that were compared are training images too"
    assert f"{counted} (test sample 0 is training sample 0)" in str(raised.value)
    warnings = found(write(tmp_path / "own.npz", a_fox, classes="cat,dog,fox"))
    assert any("class fox: 1 training samples and no test sample" in one for one in warnings)


def test_every_command_refuses_one_class(tmp_path, fedskew):
    settings = write(tmp_path / "own.npz", one_class)
    results = ("--results", tmp_path / "results")
    for command in (
        ("data", "check", tmp_path / "own.npz", "--set", f"classes={settings.classes}"),
        ("data", "show", *words(settings)),
        ("run", *words(settings), *results, "--engine", "inprocess"),
        ("select", "--minutes", 1, *words(settings), *results),
    ):
        status, output, errors = fedskew(*command)
        assert status in (1, 2) and "training samples are of class dog" in errors, command
        assert "will work" not in output
    # `flwr run` starts the ServerApp without a command of FedSkew's, which would have looked at the data before.
    stated = [*words(settings)[1::2], "rounds=1", "device=cpu", f"results={tmp_path}/results"]
    with LocalGrid() as grid, pytest.raises(DataError):
        run_and_warn(grid, parse(parse_texts(stated)))
    assert not list((tmp_path / "results").glob("*/summary.json"))


def test_every_command_warns_once(tmp_path, fedskew):
    settings = write(tmp_path / "own.npz", copied_tests(7))
    rounds = ("--set", "rounds=1", "--set", "local-epochs=1", "--engine", "inprocess")
    for command in (
        ("data", "check", tmp_path / "own.npz", "--set", f"classes={settings.classes}"),
        ("data", "show", *words(settings)),
        ("run", *words(settings), *rounds, "--results", tmp_path / "results"),
    ):
        status, output, errors = fedskew(*command)
        assert status == 0, errors
        assert output.count("Warning: 7 of 40 test images") == 1, command
    status, output, errors = fedskew("data", "show", *words(settings), "--json")
    assert status == 0 and json.loads(output) and "Warning: 7 of 40" in errors


def test_subjects_at_several_clients(tmp_path):
    rows = [f"{k}.{k // 4},{'ab'[k // 4 % 2]},s{k // 4}" for k in range(80)]
    (tmp_path / "t.csv").write_text("\n".join(["size,label,subject", *rows]))
    stated = {"classes": "a,b", "input_shape": "1", "partition": "iid", "clients": 3}
    settings = DataSettings(f"csv:{tmp_path / 't.csv'}", **stated)
    (warning,) = found(settings)
    assert warning.startswith("partition iid gives samples of 1") and "of 16 subjects" in warning
    assert found(replace(settings, partition="pooled", clients=1)) == []


@pytest.mark.parametrize("scale", [1e20, 1.0])
def test_a_divergence_names_the_column_to_blame(scale, tmp_path, fedskew):
    """A column of another scale, or where none is to blame a learning rate."""
    rows = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    rows[:, 1] *= scale
    labels = np.arange(200) % 2

    def columns(arrays):
        arrays |= {"train_images": rows[:120], "test_images": rows[120:]}
        arrays |= {"train_labels": labels[:120], "test_labels": labels[120:]}

    # The columns are taken as they are.
    more = ["model=linear", f"learning-rate={0.05 if scale > 1 else 1e30}", "mean=0", "std=1"]
    command = ["run", "--results", tmp_path, "--engine", "inprocess"]
    command += words(write(tmp_path / "table.npz", columns, input_shape="3"))
    command += [word for setting in more for word in ("--set", setting)]
    status, _, errors = fedskew(*command)
    assert status == 1 and "model: head.weight is" in errors
    assert ("column 2" in errors) == (scale > 1)
    assert ("a lower learning-rate may help" in errors) == (scale == 1)
