"""`fedskew diagnose` as a user meets it, and the line at the end of other commands."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import FedSkew

from data import DataSettings, federate


@pytest.fixture
def counts(tmp_path: Path) -> Path:
    """Return a file of three sites of one class each."""
    file = tmp_path / "counts.csv"
    file.write_text("site,healthy,[red]ill\nnorth,90,0\nsouth,0,80\nwest,20,0\n")
    return file


def test_a_file_of_counts_is_named_with_what_fails_there(counts: Path, fedskew: FedSkew) -> None:
    status, output, _ = fedskew("diagnose", counts)
    assert status == 0 and "190 samples of 2 classes at 3 sites, 20 to 90 a site" in output
    assert "label skew, certain: the site tells" in output and "3 sites with one class" in output
    assert "1 site of a batch (32) or less: west" in output and "state --moments" in output
    assert "known to fail here: creff:" in output and "(fails-creff-two-classes)" in output
    assert output.splitlines()[-1] == "Skew: label (certain). Known to fail there: fedshift, creff."
    output = fedskew("diagnose", counts, "--set", "batch-size=8", "--set", "participation=0.5")[1]
    assert "of a batch" not in output and "fails-fedshift-one-class" not in output


def test_json_holds_all_of_it(counts: Path, tmp_path: Path, fedskew: FedSkew) -> None:
    moments = tmp_path / "moments.csv"
    moments.write_text("site,mean,std\nwest,9,1\nnorth,0,1\nsouth,0,1\n")
    status, output, _ = fedskew("diagnose", counts, "--moments", moments, "--json")
    (content,) = json.loads(output)
    assert status == 0 and content["of"] == str(counts)
    assert [skew["name"] for skew in content["skews"]] == ["label", "scanner"]
    assert content["small-sites"] == ["west"] and content["statistics"]["one-class-sites"] == [
        "north",
        "south",
        "west",
    ]
    assert content["moments"]["mean"] > 5


def test_settings_an_experiment_and_a_run_are_diagnosed(
    fedskew: FedSkew, train: Callable[..., Any], tmp_path: Path
) -> None:
    (planned,) = json.loads(
        fedskew("diagnose", "--set", "alpha=0.05", "--set", "seed=3", "--json")[1]
    )
    counts_KC = federate(DataSettings(alpha=0.05), 3).counts_KC
    assert (
        planned["statistics"]["samples"] == counts_KC.sum()
        and planned["skews"][0]["name"] == "label"
    )
    status, output, _ = fedskew("diagnose", "fails-creff-two-classes", "--json")
    assert status == 0 and [entry["of"].split(", ")[1] for entry in json.loads(output)] == [
        "balanced",
        "imbalance 10",
    ]
    train(clients=3, rounds=1)
    (folder,) = (tmp_path / "results").iterdir()
    (of_run,) = json.loads(fedskew("diagnose", folder, "--json")[1])
    samples = json.loads((folder / "settings.json").read_text())["samples"]["train"]
    assert of_run["statistics"]["samples"] == np.sum(samples) and of_run["statistics"]["sites"] == 3


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nowhere.csv",), "nowhere.csv: there is no such file or folder"),
        (("fails-creff-two-clases",), "did you mean fails-creff-two-classes"),
        (("fails-creff-two-classes", "--moments", "m.csv"), "--moments"),
        (("--set", "partition=pooled"), "these settings: one a site with samples alone"),
        (("tests",), "holds no settings.json"),
    ],
)
def test_bad_input_is_one_sentence(words: tuple[str, ...], sentence: str, fedskew: FedSkew) -> None:
    status, output, complaint = fedskew("diagnose", *words)
    assert (
        (status, output) == (2, "") and sentence in complaint and len(complaint.splitlines()) == 1
    )


def test_a_bad_cell_is_named(counts: Path, fedskew: FedSkew) -> None:
    counts.write_text(counts.read_text().replace("80", "-80"))
    status, output, complaint = fedskew("diagnose", counts)
    assert (status, output) == (2, "")
    assert complaint == f"fedskew: {counts}: row 'south', column '[red]ill': -80 is negative: " + (
        "a count is a whole number from 0 to 10^12\n"
    )


def test_data_show_and_check_end_with_the_line(tmp_path: Path, fedskew: FedSkew) -> None:
    output = fedskew("data", "show", "--set", "alpha=0.05")[1]
    assert output.splitlines()[-1].startswith("Skew: label (certain). Known to fail there: ")
    assert (
        fedskew("data", "show", "--set", "partition=pooled")[1]
        .splitlines()[-1]
        .startswith("1437 training")
    )
    file, labels = tmp_path / "own.npz", np.arange(1000) % 10
    images = np.zeros((1000, 8, 8), np.uint8)
    np.savez(file, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    output = fedskew("data", "check", file)[1]
    assert "With this partition: Skew: label (certain)." in output
