"""`fedskew diagnose` as a user meets it, and the line at the end of other commands."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import FedSkew
from scipy.stats import ttest_1samp

from data import DataSettings, federate
from data.package_files import ROOT
from fedskew.diagnosis.planned import SMALLEST, moments_of, table_of_federation
from fedskew.diagnosis.rules import CLOSED_FORM, Plan, diagnose, recommended_order
from fedskew.experiments.experiments import load_experiments
from server_app.composition import closed_form_methods
from server_app.methods import METHODS


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
    assert "known to fail here: fedlc:" in output and "(fails-fedlc-one-class)" in output
    assert output.splitlines()[-1] == (
        "Skew: label (certain); scanners: not looked at. Known to fail there: fedlc."
    )
    output = fedskew("diagnose", counts, "--set", "batch-size=8")[1]
    assert "of a batch" not in output


def test_known_to_fail_is_what_the_measurements_decide(fedskew: FedSkew) -> None:
    """The page's table has the differences to FedAvg by seed: the 95 % interval of a failure lies below 0."""
    page = (ROOT / "docs" / "guides" / "diagnose.md").read_text()
    _, _, table = page.partition("| method | where | measured | differences | decided |\n")
    decided = set()
    experiment = ""
    for row in table.partition("\n\n")[0].splitlines()[1:]:
        cells = [cell.strip() for cell in row.split("|")[1:-1]]
        method, where, _, differences, _ = cells
        experiment = re.findall(r"`([\w-]+)`", where)[0] if "`" in where else experiment
        values = [float(value) for value in re.findall(r"[+-][\d.]+", differences)]
        if len(values) > 2 and ttest_1samp(values, 0.0).confidence_interval().high < 0:
            decided.add((method, experiment))
    assert len(decided) > 1

    said = set()
    for name in load_experiments():
        if name.startswith("fails-"):
            (status, output, _) = fedskew("diagnose", name, "--json")
            assert status == 0
            for diagnosis in json.loads(output):
                said |= {(rule["method"], rule["experiment"]) for rule in diagnosis["failing"]}
    assert said == decided


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


def test_heads_in_closed_form_come_first_where_features_stay_as_they_are(
    counts: Path, fedskew: FedSkew, train: Callable[..., Any], tmp_path: Path
) -> None:
    plan = ("--set", "model=random-conv", "--set", "batch-size=8")
    output = fedskew("diagnose", counts, *plan)[1]
    lines = [line for line in output.splitlines() if line.startswith("try first")]
    assert lines[0].endswith(f"fed-lda, which uploads {METHODS['fed-lda'].reveals}")
    assert len(lines) == len(CLOSED_FORM)
    (found,) = json.loads(fedskew("diagnose", counts, *plan, "--json")[1])
    assert [entry["method"] for entry in found["try-first"]] == [*CLOSED_FORM]
    # A model that trains its features, and counts of which no model is known.
    for words in (("--set", "model=mlp-bn"), ()):
        assert "try first" not in fedskew("diagnose", counts, *words)[1]

    train(clients=3, rounds=1, model="linear")
    (folder,) = (tmp_path / "results").iterdir()
    assert "try first" in fedskew("diagnose", folder)[1]


def test_the_heads_to_try_first_are_all_there_are() -> None:
    assert sorted(CLOSED_FORM) == sorted(closed_form_methods())
    diagnosis = diagnose(table_of_federation(federate(DataSettings(alpha=0.05), 3)))
    methods = ["fedavg", "fed3r", "fedshift", "fed-lda"]
    assert recommended_order(diagnosis, methods)[0] == "fedshift"
    fixed = replace(diagnosis, plan=Plan(fixed_features=True))
    assert recommended_order(fixed, methods) == ["fed-lda", "fed3r", "fedshift", "fedavg"]


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
    whose = (
        "With FedSkew's simulated partition (lda, 10 clients), which says nothing of your own sites"
    )
    output = fedskew("data", "show", "--set", "alpha=0.05")[1]
    skew = "Skew: label (certain), quantity (certain)."
    assert output.splitlines()[-1] == f"{whose}: {skew}"
    output = fedskew("diagnose", "--set", "alpha=0.05")[1]
    assert "simulated partition, which says nothing of your own sites" in output.splitlines()[0]
    assert (
        fedskew("data", "show", "--set", "partition=pooled")[1]
        .splitlines()[-1]
        .startswith("1437 training")
    )
    file, labels = tmp_path / "own.npz", np.arange(1000) % 10
    images = np.random.default_rng(0).integers(0, 256, (1000, 8, 8), np.uint8)
    np.savez(
        file, train_images=images, train_labels=labels, test_images=255 - images, test_labels=labels
    )
    output = fedskew("data", "check", file)[1]
    assert f"{whose}: Skew: label (certain), quantity (certain)" in output


def two_hospitals(file: Path, north_cholesterol: float = 200, patients: int = 20) -> Path:
    """Write a table of two hospitals, two rows a patient, alike but for the cholesterol at one of them."""
    draws = np.random.default_rng(3)
    rows = ["age,cholesterol,label,site,patient"]
    for site, cholesterol in (("north", north_cholesterol), ("south", 200)):
        for patient in range(patients):
            age, level = draws.normal(60, 10), draws.normal(cholesterol, 20)
            label = ("healthy", "ill")[patient % 2]
            for _ in range(2):
                rows.append(
                    f"{age + draws.normal():.2f},{level + draws.normal():.2f},{label},{site},"
                    f"{site}-{patient}"
                )
    file.write_text("\n".join(rows) + "\n")
    return file


@pytest.mark.parametrize(
    ("north", "said"),
    [(200, "Skew: none that so few samples show."), (300, "Skew: scanner (certain).")],
)
def test_every_command_looks_at_the_features_of_a_table(
    north: float, said: str, tmp_path: Path, fedskew: FedSkew
) -> None:
    """Cholesterol 2.5 standard deviations from all at one hospital is lost among the numbers of all columns pooled."""
    file = two_hospitals(tmp_path / "own.csv", north)
    words = [
        "--set",
        f"dataset=csv:{file}",
        "--set",
        "classes=healthy,ill",
        "--set",
        "input-shape=2",
    ]
    outputs = [
        fedskew("data", "check", file)[1],
        fedskew("data", "show", *words)[1],
        fedskew("diagnose", *words)[1],
    ]
    assert [said in output for output in outputs] == [True] * 3, outputs
    assert f"With this partition: {said}" in outputs[0]
    (content,) = json.loads(fedskew("diagnose", *words, "--json")[1])
    if north != 200:
        assert content["moments"]["feature"] == "number 2 of 2"
        assert "fedbn" not in {rule["method"] for rule in content["failing"]}
        assert "look at singleset beside fedbn" in content["remark"]


def test_images_are_looked_at_and_what_is_not_is_said(tmp_path: Path, fedskew: FedSkew) -> None:
    output = fedskew("diagnose", "--set", "dataset=digits-scanners", "--set", "model=mlp-bn")[1]
    assert "Skew: scanner (certain)" in output and "not looked at" not in output
    counts = tmp_path / "counts.csv"
    counts.write_text("site,a,b\nnorth,90,90\nsouth,90,90\n")
    output = fedskew("diagnose", counts)[1]
    assert "Skew: none; scanners: not looked at." in output


def test_moments_may_call_sites_by_their_own_names(tmp_path: Path, fedskew: FedSkew) -> None:
    """The federation calls its clients `0 north`, and whoever writes a file of moments `north`."""
    file, moments = two_hospitals(tmp_path / "own.csv"), tmp_path / "moments.csv"
    words = [
        "--set",
        f"dataset=csv:{file}",
        "--set",
        "classes=healthy,ill",
        "--set",
        "input-shape=2",
    ]
    for names in (("north", "south"), ("0 north", "1 south")):
        moments.write_text(f"site,mean,std\n{names[1]},0,1\n{names[0]},9,1\n")
        status, output, complaint = fedskew("diagnose", *words, "--moments", moments)
        assert (status, complaint) == (0, "") and "Skew: scanner (certain)" in output
    moments.write_text("site,mean,std\nnorth,0,1\neast,9,1\n")
    status, _, complaint = fedskew("diagnose", *words, "--moments", moments)
    assert status == 2 and "east" in complaint and "the sites are those of the counts" in complaint


def test_patients_of_a_table_are_what_chance_counts(tmp_path: Path, fedskew: FedSkew) -> None:
    """Three hospitals of 20 patients with eight rows each, labels drawn alike: 62 to 45 % by rows is no skew."""
    file = tmp_path / "own.csv"
    rows = ["value,label,site,patient"]
    for site, ill in (("a", 13), ("b", 9), ("c", 7)):
        for patient in range(20):
            label = "ill" if patient < ill else "healthy"
            rows.extend([f"{patient % 5},{label},{site},{site}{patient}"] * 8)
    file.write_text("\n".join(rows) + "\n")
    output = fedskew("data", "check", file)[1]
    assert "With this partition: Skew: none that so few samples show." in output
    words = [
        "--set",
        f"dataset=csv:{file}",
        "--set",
        "classes=healthy,ill",
        "--set",
        "input-shape=1",
    ]
    output = fedskew("diagnose", *words)[1]
    assert "of 48 subjects, whom chance is reckoned by" in output
    assert "8 samples count as one independent sample" in output

    run = [*words, "--set", "model=mlp-bn", "--set", "rounds=1", "--results", tmp_path / "results"]
    assert fedskew("run", *run)[0] == 0
    (folder,) = (tmp_path / "results").iterdir()
    output = fedskew("diagnose", folder)[1]
    said = "Skew: none that so few samples show; scanners: not looked at."
    assert "of 48 subjects" in output and said in output
    # The report finds the data, and looks at the scanners as `data check` does.
    report = fedskew("report", "--markdown", "--results", tmp_path / "results")[1]
    assert "Skew: none that so few samples show." in report


def test_a_features_kurtosis_is_that_of_all_sites_around_their_own_means(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    values = {"north": draws.standard_t(3, 90) + 5, "south": draws.standard_t(3, 40)}
    rows = ["value,label,site"]
    for site, numbers in values.items():
        rows += [f"{number:.6f},{'ab'[k % 2]},{site}" for k, number in enumerate(numbers)]
    file = tmp_path / "own.csv"
    file.write_text("\n".join(rows) + "\n")
    federation = federate(DataSettings(f"csv:{file}", classes="a,b", input_shape="1"), 0)
    moments = moments_of(federation, table_of_federation(federation))
    assert moments is not None and moments.kurtosis_F is not None

    inputs, labels = federation.dataset.train_inputs, federation.train_indices
    assert isinstance(inputs, np.ndarray)
    centered = [inputs[part, 0] - inputs[part, 0].mean(dtype=np.float64) for part in labels]
    pooled = np.concatenate(centered).astype(np.float64)
    kurtosis = (pooled**4).mean() / (pooled**2).mean() ** 2
    assert kurtosis > 4
    assert moments.kurtosis_F == pytest.approx([kurtosis], rel=1e-5)


def test_every_column_of_a_table_has_its_name(tmp_path: Path) -> None:
    """Three columns at two sites: the names count columns."""
    draws = np.random.default_rng(0)
    rows = ["a,b,c,label,site"]
    for k in range(40):
        numbers = ",".join(f"{number:.4f}" for number in draws.normal(size=3))
        rows.append(f"{numbers},{'xy'[k % 2]},{('north', 'south')[k // 20]}")
    file = tmp_path / "own.csv"
    file.write_text("\n".join(rows) + "\n")
    federation = federate(DataSettings(f"csv:{file}", classes="x,y", input_shape="3"), 0)
    moments = moments_of(federation, table_of_federation(federation))
    assert moments is not None
    assert moments.features == ("number 1 of 3", "number 2 of 3", "number 3 of 3")


def test_noise_that_clients_add_counts_in_their_deviations() -> None:
    """Client i of K adds variance noise * i / K on the scale 0..1, which is 255 steps of stored pixels."""
    settings = DataSettings("digits-plain", clients=4, partition="iid")
    quiet = federate(settings, 0)
    loud = federate(replace(settings, noise=0.5), 0)
    inputs = quiet.dataset.train_inputs
    assert isinstance(inputs, np.ndarray)
    scale = 255.0 if inputs.dtype == np.uint8 else 1.0
    without = moments_of(quiet, table_of_federation(quiet))
    with_noise = moments_of(loud, table_of_federation(loud))
    assert without is not None and with_noise is not None
    added_K = (with_noise.deviations_KF**2 - without.deviations_KF**2)[:, 0]
    assert added_K == pytest.approx([0.5 * (k + 1) / 4 * scale**2 for k in range(4)], rel=1e-6)


def test_deviations_of_a_feature_are_at_least_a_share_of_that_over_all_sites(
    tmp_path: Path,
) -> None:
    """`a` is the same number at each site and another at every site; `b` is one number everywhere."""
    rows = ["a,b,label,site"]
    for k in range(40):
        north = k < 10
        rows.append(f"{1.5 if north else 3.5},7,{'xy'[k % 2]},{'north' if north else 'south'}")
    file = tmp_path / "own.csv"
    file.write_text("\n".join(rows) + "\n")
    federation = federate(DataSettings(f"csv:{file}", classes="x,y", input_shape="2"), 0)
    moments = moments_of(federation, table_of_federation(federation))
    assert moments is not None
    inputs = federation.dataset.train_inputs
    assert isinstance(inputs, np.ndarray)
    overall = float(inputs[:, 0].astype(np.float64).std())
    assert moments.deviations_KF[:, 0] == pytest.approx([SMALLEST * overall] * 2)
    assert moments.deviations_KF[:, 1].tolist() == [1.0, 1.0]
