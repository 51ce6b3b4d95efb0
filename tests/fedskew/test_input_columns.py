"""A table's columns: matched by name, standardized by training rows, in a simulation and between sites."""

import csv
import json
import sys
import tomllib

import numpy as np
import pytest
import torch
from safetensors import safe_open
from sklearn.preprocessing import StandardScaler

import fedskew as package
from client_app.client import InvalidReply
from client_app.local_site import PERMISSIONS
from client_app.runtime import site_runtime
from client_app.site_questions import ColumnSums, is_standardization
from data import DataError, DataSettings, federate, load
from data.agreement import read_agreement
from data.standardization import column_sums, standardization
from fedskew.engines import Resources, execute
from server_app.settings import parse
from site_agent.audit import Audit
from site_agent.cli import main as site_command
from tests.site_files import (
    NAMES,
    agreed,
    data_sets,
    site_entries,
    site_folders,
    with_mask_keys,
    write,
)

COLUMNS = ("age", "income", "dose", "a, b")
REVERSED = COLUMNS[::-1]
ALL = {"allow": list(PERMISSIONS)}
KNOWN = {"classes": "healthy,ill", "input-shape": "4"}
TRAINING = {"method": "fedavg", "model": "mlp-bn", "rounds": 2, "batch-size": 8, "device": "cpu"}

pytestmark = pytest.mark.usefixtures("forget_runtimes")


def numbers_of(site):
    """Return (40, 4) float32 of columns with scales of their own, the last one constant, and (40,) classes."""
    labels = np.arange(40) % 2
    noise = np.random.default_rng(site).normal(size=(40, 4))
    numbers = noise * [5, 20_000, 1e-6, 0] + [50 + site, 80_000, 3e-6, 7.1]
    numbers[:, 1] += 30_000 * labels
    return numbers.astype(np.float32), labels


def vectors(file, site, order=COLUMNS):
    """Write a site's numbers as an npz file with its columns in this order, the last ten rows for testing."""
    numbers, labels = numbers_of(site)
    inputs = numbers[:, [COLUMNS.index(name) for name in order]]
    arrays = {"train_images": inputs[:30], "train_labels": labels[:30]}
    arrays |= {"test_images": inputs[30:], "test_labels": labels[30:]}
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, **arrays, columns=np.array(order))
    return file


def table(file, site, order=COLUMNS, **renamed):
    """Write the same numbers as a table, some columns under another name."""
    numbers, labels = numbers_of(site)
    places = [COLUMNS.index(name) for name in order]
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow([*(renamed.get(name, name) for name in order), "split", "label"])
        for row, (values, label) in enumerate(zip(numbers, labels, strict=True)):
            words = ["test" if row >= 30 else "train", ("healthy", "ill")[label]]
            writer.writerow([*map(str, values[places].tolist()), *words])
    return file


def several(folder):
    """Write every site's numbers, and return them as domains."""
    for site, name in enumerate(NAMES):
        vectors(folder / name / "data.npz", site)
    return data_sets(folder)


def settings_of(folder, **changes):
    return DataSettings(several(folder), classes="healthy,ill", input_shape="4", **changes)


def load_of(*files):
    names = ",".join(f"{file.suffix[1:]}:{file}" for file in files)
    return load(DataSettings(f"domains:{names}", classes="healthy,ill", input_shape="4"))


@pytest.mark.parametrize("write_file", [table, vectors])
def test_the_first_file_fixes_the_order_of_a_data_set(tmp_path, write_file):
    name = "south.csv" if write_file is table else "south.npz"
    first = table(tmp_path / "north.csv", 0)
    same = load_of(first, write_file(tmp_path / "same" / name, 1))
    other = load_of(first, write_file(tmp_path / "other" / name, 1, REVERSED))
    assert other.input_columns == COLUMNS and other.content == same.content


def test_other_columns_are_refused_by_name_and_file(tmp_path):
    first = table(tmp_path / "north.csv", 0)
    second = table(tmp_path / "south.csv", 1, REVERSED, income="Income", age="years")
    with pytest.raises(DataError) as caught:
        load_of(first, second)
    words = ("'age', 'income'", "'Income', 'years'", str(first), str(second))
    assert [text for text in words if text not in str(caught.value)] == []


VALIDATION = {"validation_fraction": 0.2, "evaluate_on": "validation"}


@pytest.mark.parametrize("changes", [{}, {"holdout_per_class": 3}, VALIDATION])
def test_mean_and_std_are_of_the_clients_training_rows_alone(tmp_path, changes):
    federation = federate(settings_of(tmp_path, **changes), 0)
    data, held = federation.dataset, np.concatenate(federation.train_indices)
    assert federation.standardized_rows == len(held)
    scaler = StandardScaler().fit(data.train.inputs[held].astype(np.float64))
    assert data.mean == pytest.approx(tuple(scaler.mean_), rel=1e-12)
    assert data.std == pytest.approx(tuple(scaler.scale_), rel=1e-9)
    assert data.std[3] == 1  # of the constant column
    trained = federation.train(0)
    inputs = trained.batch(torch.arange(len(trained)))
    assert inputs.abs().max() < 10 and not inputs[:, 3].any()


def test_stated_numbers_win_and_0_and_1_leave_the_columns_raw(tmp_path):
    raw = federate(settings_of(tmp_path, mean="0", std="1"), 0)
    assert (raw.dataset.mean, raw.dataset.std, raw.standardized_rows) == ((0.0,), (1.0,), 0)
    stated = federate(settings_of(tmp_path, mean="1,2,3,4", std="5"), 0)
    assert (stated.dataset.mean, stated.dataset.std) == ((1, 2, 3, 4), (5,))
    one, own = federate(settings_of(tmp_path, mean="0"), 0), federate(settings_of(tmp_path), 0)
    assert one.dataset.mean == (0,) and one.dataset.std == own.dataset.std
    assert own.hash == raw.hash  # the same samples at the same clients


@pytest.mark.parametrize("rows", [1, 400])
def test_sums_have_the_same_bits_however_rows_are_split(rows):
    draws = np.random.default_rng(rows)
    exponents = np.array([[-44, -20, 0, 3, 20, 37]])
    numbers = (draws.normal(size=(rows, 6)) * 10.0**exponents).astype(np.float32)
    numbers[:, 2] = 0
    whole = column_sums(numbers)
    parts = np.array_split(draws.permutation(rows), min(rows, 3))
    of_parts = [column_sums(numbers[part]) for part in parts]
    total = {name: sum(sums[name] for sums in of_parts) for name in whole}
    assert standardization(total) == standardization(whole)
    mean, std = standardization(whole)
    exact = numbers.astype(np.longdouble)
    assert np.allclose(mean, exact.mean(0).astype(float), rtol=1e-10, atol=1e-300)
    expected = exact.std(0).astype(float)
    expected[expected < np.finfo(np.float32).tiny] = 1
    assert np.allclose(std, expected, rtol=1e-6, atol=0)


def test_sums_that_are_none_are_refused():
    numbers = np.ones((5, 2), np.float32)
    standardization(column_sums(numbers))
    for change in (
        {"counts": np.array([0])},
        {"squares": np.zeros((2, 15), np.int64)},
        {"sums": np.full((2, 8), 2**62)},
    ):
        with pytest.raises(ValueError):
            standardization({**column_sums(numbers), **change})
    for value in (np.nan, np.inf):
        with pytest.raises(ValueError):
            column_sums(np.array([[1], [value]], np.float32))


def test_a_client_takes_finite_means_and_positive_deviations_alone():
    good = {"mean": torch.zeros(2), "std": torch.ones(2)}
    assert is_standardization(good, 2) and not is_standardization(good, 3)
    for name, value in (("std", 0.0), ("std", torch.inf), ("mean", torch.nan)):
        assert not is_standardization({**good, name: torch.tensor([1.0, value])}, 2)


@pytest.mark.parametrize("place", ["sums", "squares"])
def test_a_limb_that_could_overflow_a_sum_is_no_answer(place):
    upload = ColumnSums(2).upload
    rows_NF = np.array([[1, -3], [2, 5]], np.float32)
    answer = {name: torch.from_numpy(array) for name, array in column_sums(rows_NF).items()}
    upload.validate(answer, 2, 2)
    for samples in (1, 3):
        with pytest.raises(InvalidReply):
            upload.validate(answer, 2, samples)
    upload.validate(
        {name: 1000 * array for name, array in answer.items()}, 2, None
    )  # of 1000 sites
    answer[place][0, 0] = 2**63 - 1
    for samples in (2, None):  # nobody knows those of a site
        with pytest.raises(InvalidReply):
            upload.validate(answer, 2, samples)


def test_a_run_records_what_it_standardized_by_and_an_export_has_it(tmp_path, fedskew):
    stated = {**TRAINING, **KNOWN, "rounds": 1, "results": str(tmp_path / "results")}
    run = package.run({**stated, "dataset": several(tmp_path)}).folder
    kept = json.loads((run / "settings.json").read_text())["standardization"]
    assert kept["rows"] == 90
    assert fedskew("export", run, "--output", tmp_path / "model")[0] == 0
    with safe_open(tmp_path / "model/model.safetensors", "pt") as file:
        for key in ("mean", "std"):
            stated = ",".join(str(column[key]) for column in kept["columns"])
            assert file.metadata()[key] == stated


OF_TABLES = {"classes": ["healthy", "ill"], "input_shape": "4", "mean": None, "std": None}


def federation(folder, east=COLUMNS, **changes):
    """Write a federation's folder of sites; `east` has its own order of columns, or some of them."""
    usual = {**OF_TABLES, "site": with_mask_keys(), "input_columns": list(COLUMNS)}
    site_folders(folder, ALL, **{**usual, **changes})
    several(folder)
    vectors(folder / "east/data.npz", NAMES.index("east"), east)
    return folder


def rehearse(folder, results, report_line=lambda line: None, **changes):
    dataset = f"sites:{folder}/federation.toml"
    settings = parse({**TRAINING, "dataset": dataset, "results": str(results), **changes})
    summary = execute(settings, Resources("inprocess"), report_line, sites=str(folder))
    return summary, settings.folder


def events(folder):
    file = folder / "north" / "state/audit.jsonl"
    return [json.loads(line) for line in Audit(file).lines()] if file.exists() else []


def test_masked_sums_make_the_simulations_model_and_a_run_resumes(tmp_path):
    """Whatever order a site's columns have."""
    folder = federation(tmp_path / "sites", REVERSED)
    known = {**TRAINING, **KNOWN, "dataset": several(tmp_path / "plain")}
    settings = parse({**known, "results": str(tmp_path / "simulated")})
    simulated = execute(settings, Resources("inprocess"), lambda line: None)
    whole, run = rehearse(folder, tmp_path / "whole")
    assert whole["hash"]["shared"] == simulated["hash"]["shared"]
    kept = [
        json.loads((of / "settings.json").read_text())["standardization"]
        for of in (run, settings.folder)
    ]
    assert kept[0] == kept[1]
    before = events(folder)
    assert [entry["event"] for entry in before] == ["summed"] and "column-sums" in before[0]["sum"]

    def stop(line):
        if line.startswith("round   1"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rehearse(folder, tmp_path / "parts", stop)
    site_runtime.cache_clear()
    assert rehearse(folder, tmp_path / "parts")[0]["hash"] == whole["hash"]
    assert [entry["event"] for entry in events(folder)] == ["summed", "sum repeated"]
    assert events(folder)[1]["sum"] == before[0]["sum"]


def test_a_site_that_lets_no_sums_leave_is_named(tmp_path):
    refusing = site_entries(name="east", policy={"allow": ["model", "scores", "class-counts"]})
    folder = federation(tmp_path / "sites")
    write(folder / "east/site.toml", refusing)
    with pytest.raises(DataError) as caught:
        rehearse(folder, tmp_path / "results")
    assert "site east" in str(caught.value)
    # With numbers of the agreement nobody is asked.
    numbers = {"mean": [50, 80_000, 0, 7], "std": [5, 2e4, 1e-6, 1]}
    stated = federation(tmp_path / "stated", **numbers)
    write(stated / "east/site.toml", refusing)
    rehearse(stated, tmp_path / "results", rounds=1)
    assert not events(stated)


def test_an_agreement_states_both_or_neither_and_neither_for_tables_alone(tmp_path):
    def read(**changes):
        entries = agreed(**{**OF_TABLES, **changes})
        return read_agreement(write(tmp_path / "federation.toml", entries))

    assert read().mean == read().std == ()
    assert read(mean=[0], std=[1]).mean == (0,)
    for changes in ({"mean": [0]}, {"std": [1]}, {"input_shape": "1x8x8"}):
        with pytest.raises(DataError):
            read(**changes)


@pytest.mark.parametrize(
    ("east", "named", "mark", "said"),
    [
        (COLUMNS[:3], COLUMNS, "NO ", "'a, b'"),
        (COLUMNS, ("age", "income", "dose", "c"), "NO ", "'a, b'"),
        (COLUMNS, None, "(!)", "federation.toml"),
        (REVERSED, COLUMNS, "ok ", "another order"),
    ],
)
def test_a_site_checks_its_columns(tmp_path, monkeypatch, capsys, east, named, mark, said):
    folder = federation(tmp_path, east, input_columns=named and list(named))
    site = folder / "east/site.toml"
    monkeypatch.setattr(sys, "argv", ["fedskew-site", "check", "--site", str(site)])
    with pytest.raises(SystemExit):
        site_command()
    (row,) = [row for row in capsys.readouterr().out.splitlines() if "input column" in row]
    assert row.startswith(mark) and said in row


SCALE = ("--mean", "3", "--std", "2")


@pytest.mark.parametrize(
    ("given", "agreed_on"),
    [
        (["--columns", "FILE.npz", *SCALE], (list(COLUMNS), "4", [3.0], [2.0])),
        (["--columns", "FILE.npz", "--mean", "3"], None),
        (["--input-shape", "1x8x8"], (None, "1x8x8", [0.5], [0.5])),
        (["--columns", "age,age"], None),
    ],
)
def test_a_new_federation_agrees_on_columns(tmp_path, fedskew, given, agreed_on):
    vectors(tmp_path / "FILE.npz", 0)
    given = [word.replace("FILE", f"{tmp_path}/FILE") for word in given]
    usual = ["--name", "lab", "--address", "gateway.example.org:8443", "--classes", "healthy,ill"]
    status, _, errors = fedskew("federation", "new", tmp_path / "lab", *usual, *given)
    if agreed_on is None:
        assert status == 2 and not (tmp_path / "lab").exists()
        return
    assert status == 0, errors
    entries = tomllib.loads((tmp_path / "lab/federation.toml").read_text())
    keys = ("input-columns", "input-shape", "mean", "std")
    assert tuple(entries.get(key) for key in keys) == agreed_on
