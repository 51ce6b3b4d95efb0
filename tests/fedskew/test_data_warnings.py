"""Own data that would be read wrongly without a word: each command that reads them refuses or warns."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import FedSkew
from PIL import Image
from rich.console import Console

from data import DataError, DataSettings, federate
from data.data_warnings import MOST_TESTS, evenly, look_at, refuse_untrainable, warnings_of
from fedskew.engines.local import LocalGrid
from fedskew.scheduling import Job
from fedskew.sweep import checked
from server_app.app import run_and_warn
from server_app.run_settings import RunSettings
from server_app.settings import parse, parse_texts

POOL = np.random.default_rng(5).integers(0, 256, (200, 6, 5), np.uint8)
Change = Callable[[dict[str, Any]], None]


def write(path: Path, change: Change = lambda arrays: None, **more: Any) -> DataSettings:
    """Write 80 training and 40 test images of two classes, changed, and return settings that deal them to clients."""
    arrays: dict[str, Any] = {
        "train_images": POOL[:80].copy(),
        "train_labels": np.arange(80) % 2,
        "test_images": POOL[80:120].copy(),
        "test_labels": np.arange(40) % 2,
    }
    change(arrays)
    np.savez(path, **arrays)
    stated = {"classes": "cat,dog", "input_shape": "1x6x5", "partition": "iid", "clients": 2}
    return DataSettings(f"npz:{path}", **{**stated, **more})


def found(settings: DataSettings) -> list[str]:
    """Return the warnings, where nothing is refused."""
    federation = federate(settings, 0)
    refuse_untrainable(settings, federation)
    return warnings_of(settings, federation)


def words(settings: DataSettings) -> list[str]:
    """Return the settings as a command takes them."""
    stated = (
        f"dataset={settings.dataset}",
        f"classes={settings.classes}",
        f"input-shape={settings.input_shape}",
        "partition=iid",
        "clients=2",
    )
    return [word for pair in stated for word in ("--set", pair)]


def copied_tests(number: int) -> Change:
    def change(arrays: dict[str, Any]) -> None:
        arrays["test_images"][:number] = arrays["train_images"][:number]

    return change


def one_class(arrays: dict[str, Any]) -> None:
    arrays["train_labels"][:] = 1


def labels_of(key: str, value: int) -> Change:
    def change(arrays: dict[str, Any]) -> None:
        arrays[f"{key}_labels"][0] = value

    return change


def flat(*places: int) -> Change:
    def change(arrays: dict[str, Any]) -> None:
        for number, place in enumerate(places):
            arrays["train_images"][place] = 10 + number

    return change


def larger_tests(arrays: dict[str, Any]) -> None:
    arrays["test_images"] = np.random.default_rng(1).integers(0, 256, (40, 12, 10), np.uint8)


def test_data_of_which_nothing_is_odd(tmp_path: Path) -> None:
    assert found(write(tmp_path / "own.npz")) == []
    assert found(DataSettings()) == []


REFUSED = {
    "all test images are training images": (
        copied_tests(40),
        "all 40 test images that were compared are training images too (test sample 0 is training sample 0)",
    ),
    "one class alone": (one_class, "all 80 training samples are of class dog"),
    "one image again and again": (
        lambda arrays: arrays["train_images"].__setitem__(slice(None), POOL[3]),
        "all 80 training samples that were looked at are the same",
    ),
}
WARNED = {
    "some test images are training images": (
        copied_tests(7),
        {},
        "7 of 40 test images that were compared are training images too",
    ),
    "a class without a test sample": (
        labels_of("train", 2),
        {"classes": "cat,dog,fox"},
        "class fox: 1 training samples and no test sample",
    ),
    "a class without a training sample": (
        labels_of("test", 2),
        {"classes": "cat,dog,fox"},
        "class fox: 1 test samples and no training sample",
    ),
    "classes that nobody has": (
        lambda arrays: None,
        {"classes": "cat,dog,fox,hen"},
        "nobody has a sample of classes fox, hen",
    ),
    "images of one value": (
        flat(4, 9),
        {},
        "2 of 80 training images that were looked at are of one value throughout, the first of them number 4",
    ),
    "test images of another size": (
        larger_tests,
        {},
        "test images are of 12x10 and training images of 6x5 pixels",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_training_makes_sense_of_is_refused(
    tmp_path: Path, fedskew: FedSkew, name: str
) -> None:
    change, sentence = REFUSED[name]
    settings = write(tmp_path / "own.npz", change)
    with pytest.raises(DataError, match=r"own\.npz: all ") as raised:
        found(settings)
    assert sentence in str(raised.value)
    rounds = ("--set", "rounds=1", "--results", tmp_path / "results", "--engine", "inprocess")
    for command in (
        ("data", "check", tmp_path / "own.npz", "--classes", settings.classes),
        ("data", "show", *words(settings)),
        ("run", *words(settings), *rounds),
        ("run", *words(settings), *rounds, "--seed", "0,1"),
        ("select", "--minutes", 1, *words(settings), "--results", tmp_path / "results"),
    ):
        status, output, errors = fedskew(*command)
        assert status in (1, 2) and sentence in errors, command
        assert "will work" not in output
    assert not list((tmp_path / "results").glob("*/summary.json"))


@pytest.mark.parametrize("name", WARNED)
def test_what_a_run_can_go_on_with_is_warned_of(
    tmp_path: Path, fedskew: FedSkew, name: str
) -> None:
    change, more, sentence = WARNED[name]
    settings = write(tmp_path / "own.npz", change, **more)
    assert [warning for warning in found(settings) if sentence in warning]
    shape = ("--input-shape", settings.input_shape)
    check = fedskew("data", "check", tmp_path / "own.npz", "--classes", settings.classes, *shape)
    show = fedskew("data", "show", *words(settings))
    for status, output, errors in (check, show):
        assert status == 0, errors
        assert output.count("Warning: ") == 1 and sentence in output


@pytest.mark.parametrize(
    "seeds", [("--set", "seed=0"), pytest.param(("--seed", "1,2"), marks=pytest.mark.slow)]
)
def test_a_run_and_runs_warn_once(tmp_path: Path, fedskew: FedSkew, seeds: tuple[str, str]) -> None:
    settings = write(tmp_path / "own.npz", copied_tests(7))
    ends = ("--set", "rounds=1", "--set", "local-epochs=1", "--engine", "inprocess")
    status, output, errors = fedskew(
        "run", *words(settings), *ends, "--results", tmp_path / "results", *seeds
    )
    assert status == 0, errors
    assert output.count("Warning: 7 of 40 test images") == 1


def run_of(settings: DataSettings, results: Path) -> RunSettings:
    """Return a run of a round with these data, as flwr's run config gives it to the ServerApp."""
    short = ["rounds=1", "local-epochs=1", "device=cpu", f"results={results}"]
    return parse(parse_texts([*words(settings)[1::2], *short]))


def test_a_server_app_refuses_data_that_no_training_makes_sense_of(tmp_path: Path) -> None:
    """`flwr run` starts it without a command of FedSkew's, which would have looked at the data before."""
    settings = write(tmp_path / "own.npz", one_class)
    with LocalGrid() as grid, pytest.raises(DataError, match="80 training samples are of class"):
        run_and_warn(grid, run_of(settings, tmp_path / "results"))
    assert not (tmp_path / "results").exists()


def test_a_server_app_warns_of_what_it_goes_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = write(tmp_path / "own.npz", copied_tests(7))
    run = run_of(settings, tmp_path / "results")
    with LocalGrid() as grid:
        run_and_warn(grid, run)
    model, first, *others = capsys.readouterr().out.splitlines()
    assert model.startswith("model resnet-8, ") and model.endswith(" MB per upload")
    assert first.startswith("Warning: 7 of 40 test images that were compared are training images")
    assert first.endswith(".") and not [line for line in others if line.startswith("Warning")]
    assert (run.folder / "summary.json").exists()


def test_several_runs_of_the_same_data_are_warned_of_once(tmp_path: Path) -> None:
    settings = write(tmp_path / "own.npz", copied_tests(7))
    stated = dict(word.split("=", 1) for word in words(settings)[1::2])
    runs = [
        parse({**parse_texts([f"{k}={v}" for k, v in stated.items()]), "seed": k}) for k in (0, 1)
    ]
    out = Console(file=StringIO(), width=200)
    jobs, outcomes = checked([Job(run, str(k)) for k, run in enumerate(runs)], out)
    assert (len(jobs), outcomes) == (2, {})
    assert out.file.getvalue().count("Warning: 7 of 40 test images") == 1


def test_json_on_stdout_has_no_warning_in_it(tmp_path: Path, fedskew: FedSkew) -> None:
    settings = write(tmp_path / "own.npz", copied_tests(7))
    status, output, errors = fedskew("data", "show", *words(settings), "--json")
    assert status == 0
    assert "Warning" not in output and "Warning: 7 of 40" in errors


def test_validation_images_that_are_training_images(tmp_path: Path) -> None:
    def change(arrays: dict[str, Any]) -> None:
        arrays["val_images"], arrays["val_labels"] = POOL[78:83], np.arange(5) % 2

    (warning,) = found(write(tmp_path / "own.npz", change))
    assert warning.startswith("2 of 5 validation images that were compared are training images")


def test_validation_samples_in_the_test_sets_place_are_no_copies(tmp_path: Path) -> None:
    settings = write(tmp_path / "own.npz", validation_fraction=0.2, evaluate_on="validation")
    assert found(settings) == []


def test_equal_rows_of_numbers_are_no_error(tmp_path: Path) -> None:
    rows = [f"{k % 4},{'ab'[k % 2]}" for k in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["size,label", *rows]))
    stated = {"classes": "a,b", "input_shape": "1", "partition": "iid", "clients": 2}
    (warning,) = found(DataSettings(f"csv:{tmp_path / 't.csv'}", **stated))
    assert "8 of 8 test rows that were compared are training rows too" in warning


def test_subjects_at_several_clients(tmp_path: Path) -> None:
    rows = [f"{k}.{k // 4},{'ab'[k // 4 % 2]},s{k // 4}" for k in range(80)]
    (tmp_path / "t.csv").write_text("\n".join(["size,label,subject", *rows]))
    stated = {"classes": "a,b", "input_shape": "1", "partition": "iid", "clients": 3}
    settings = DataSettings(f"csv:{tmp_path / 't.csv'}", **stated)
    (warning,) = found(settings)
    assert warning.startswith("partition iid gives samples of 1") and "of 16 subjects" in warning
    assert found(replace(settings, partition="pooled", clients=1)) == []


@pytest.mark.parametrize("kind", ["folder", "csv"])
def test_files_of_test_images_of_another_size(tmp_path: Path, kind: str) -> None:
    for larger, size in ((False, 6), (True, 12)):
        rows = ["path,label,split"]
        for split, side, start in (("train", 6, 0), ("test", size, 8)):
            for k in range(8):
                label = "cat" if k % 2 else "dog"
                name = f"{larger}/{split}/{label}/{k}.png"
                (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
                image = Image.fromarray(POOL[start + k])
                image.resize((side, side)).save(tmp_path / name)
                rows.append(f"{name},{label},{split}")
        (tmp_path / "t.csv").write_text("\n".join(rows))
        place = f"folder:{tmp_path / str(larger)}" if kind == "folder" else f"csv:{tmp_path}/t.csv"
        stated = {"classes": "cat,dog", "input_shape": "1x6x6", "partition": "iid", "clients": 2}
        sentences = found(DataSettings(place, **stated))
        assert len(sentences) == larger
        if larger:
            assert "test images are of 12x12 and training images of 6x6 pixels" in sentences[0]


def test_the_look_is_bounded(tmp_path: Path) -> None:
    places = evenly(10**7, MOST_TESTS)
    assert len(places) == MOST_TESTS == len(np.unique(places))
    assert places[0] == 0 and places[-1] > 9.9e6
    assert evenly(5, MOST_TESTS).tolist() == [0, 1, 2, 3, 4]
    data = federate(write(tmp_path / "own.npz"), 0).dataset
    repeated = np.broadcast_to(POOL[150], (10**6, 1, 6, 5))
    look = look_at(replace(data, test_inputs=repeated, content="other"))
    assert look.copies["test"][:2] == (0, MOST_TESTS)


def test_a_look_keeps_no_data_set_in_memory(tmp_path: Path) -> None:
    data = federate(write(tmp_path / "own.npz"), 0).dataset
    copy = replace(data, content="a copy of its own")
    look = look_at(copy)
    there = weakref.ref(copy)
    del copy
    gc.collect()
    assert there() is None
    assert look_at(replace(data, content="a copy of its own")) is look


@pytest.mark.parametrize(
    "fault",
    ["unequal scale", "record numbers", "constant", "outlier", "none"],
)
def test_a_divergence_names_the_column_to_blame(
    fault: str, tmp_path: Path, fedskew: FedSkew
) -> None:
    draws = np.random.default_rng(0)
    labels = np.arange(200) % 2
    rows = draws.normal(size=(200, 3)).astype(np.float32)
    faults: dict[str, object] = {
        "unequal scale": 1e20 * rows[:, 1],
        "record numbers": 1e18 + 1e15 * np.arange(200),
        "constant": 1e20,
        "outlier": np.where(np.arange(200) == 7, 1e21, rows[:, 1]),
        "none": rows[:, 1],
    }
    rows[:, 1] = faults[fault]
    train, test = slice(0, 120), slice(120, 200)
    file = tmp_path / "table.npz"
    np.savez(
        file,
        train_images=rows[train],
        train_labels=labels[train],
        test_images=rows[test],
        test_labels=labels[test],
    )
    words: list[object] = ["--results", tmp_path, "--engine", "inprocess"]
    settings = {"dataset": f"npz:{file}", "classes": 2, "input-shape": 3, "model": "linear"}
    settings |= {"partition": "iid", "clients": 2, "rounds": 3, "method": "fedavg"}
    settings |= {"cache": tmp_path, "learning-rate": 1e30 if fault == "none" else 0.05}
    settings |= {"mean": 0, "std": 1}  # the columns as they are: standardized, they do not diverge
    for key, value in settings.items():
        words += ["--set", f"{key}={value}"]
    status, _, errors = fedskew("run", *words)
    assert status == 1 and "model: head.weight is" in errors
    planned = fedskew("run", *words, "--dry-run")[1]
    assert "1 run, 0 of them finished, 1 diverged and not repeated: " in planned
    assert ("column 2" in errors) == (fault != "none")
    assert ("a lower learning-rate may help" in errors) == (fault == "none")
