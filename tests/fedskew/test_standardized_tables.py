"""A table's columns are standardized by the clients' training rows: in every engine, between sites, in exports."""

import csv
import json
import re

import numpy as np
import pytest
import torch
from safetensors import safe_open
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

import fedskew
from client_app.client import InvalidReply
from client_app.column_sums import ColumnSums
from client_app.local_site import PERMISSIONS
from client_app.runtime import site_runtime
from data import DataError, DataSettings, federate, load
from data.agreement import read_agreement
from data.standardization import column_sums, standardization
from fedskew.engines import execute
from server_app.run_folder import RunFolder
from server_app.settings import parse
from site_agent.audit import Audit
from tests.site_files import NAMES, agreed, site_entries, with_mask_keys, write, write_mask_key

COLUMNS = ("age", "income", "dose", "constant")
ALL = {"allow": list(PERMISSIONS)}
KNOWN = {"classes": "healthy,ill", "input-shape": "4"}
TRAINING = {
    "method": "fedavg",
    "model": "mlp-bn",
    "rounds": 2,
    "batch-size": 8,
    "device": "cpu",
}


pytestmark = pytest.mark.usefixtures("forget_runtimes")


def numbers_of(site, rows=40):
    """Return (rows, 4) float32 of columns with scales of their own, and (rows,) classes."""
    draws = np.random.default_rng(site)
    labels = np.arange(rows) % 2
    noise = draws.normal(size=(rows, 4))
    numbers = noise * [5, 20_000, 1e-6, 0] + [50 + site, 80_000, 3e-6, 7.1]
    numbers[:, 1] += 30_000 * labels
    return numbers.astype(np.float32), labels


def vectors(file, site):
    """Write a site's numbers as an npz file, the last ten rows for testing."""
    numbers, labels = numbers_of(site)
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        file, train_images=numbers[:30], train_labels=labels[:30],
        test_images=numbers[30:], test_labels=labels[30:], columns=np.array(COLUMNS),
    )  # fmt: skip
    return file


def all_sites(folder):
    return "domains:" + ",".join(f"npz:{folder}/{name}/data.npz" for name in NAMES)


def settings_of(folder, **changes):
    for number, name in enumerate(NAMES):
        vectors(folder / name / "data.npz", number)
    usual = {"classes": "healthy,ill", "input_shape": "4", "cache": str(folder / "cache")}
    return DataSettings(all_sites(folder), **{**usual, **changes})


def assert_scaled_as(federation, rows_NF):
    scaler = StandardScaler().fit(rows_NF.astype(np.float64))
    assert federation.dataset.mean == pytest.approx(tuple(scaler.mean_), rel=1e-12)
    assert federation.dataset.std == pytest.approx(tuple(scaler.scale_), rel=1e-9)
    assert federation.dataset.std[3] == 1  # of the constant column


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"partition": "domains", "holdout_per_class": 3},
        {"validation_fraction": 0.2},
        {"validation_fraction": 0.2, "evaluate_on": "validation"},
        {"unseen_domain": "data-2"},
        {"train_images": 12},
    ],
    ids=lambda changes: ",".join(changes) or "plain",
)
def test_mean_and_std_are_of_the_clients_training_rows_alone(tmp_path, changes):
    if "unseen_domain" in changes:
        folder = tmp_path / "named"
        changes = {"unseen_domain": "south"}
        names = [vectors(folder / f"{name}.npz", number) for number, name in enumerate(NAMES)]
        dataset = "domains:" + ",".join(f"npz:{name}" for name in names)
        settings = DataSettings(dataset, classes="healthy,ill", input_shape="4", **changes)
    else:
        settings = settings_of(tmp_path, **changes)
    federation = federate(settings, 0)
    held = np.concatenate(federation.train_indices)
    rows_NF = np.asarray(federation.dataset.train_inputs)[held]
    assert len(held) < 90 or not changes
    assert federation.standardized_rows == len(held)
    assert_scaled_as(federation, rows_NF)
    trained = federation.train(0)
    inputs = trained.batch(trained.labels_N.new_tensor(range(len(trained))))
    assert inputs.abs().max() < 10 and not inputs[:, 3].any()


def test_stated_numbers_win_and_0_and_1_leave_the_columns_raw(tmp_path):
    raw = federate(settings_of(tmp_path, mean="0", std="1"), 0)
    assert (raw.dataset.mean, raw.dataset.std, raw.standardized_rows) == ((0.0,), (1.0,), 0)
    stated = federate(settings_of(tmp_path, mean="1,2,3,4", std="5"), 0)
    assert (stated.dataset.mean, stated.dataset.std) == ((1, 2, 3, 4), (5,))
    one = federate(settings_of(tmp_path, mean="0"), 0)
    own = federate(settings_of(tmp_path), 0)
    assert one.dataset.mean == (0,) and one.dataset.std == own.dataset.std
    assert own.hash == raw.hash  # the same samples at the same clients


def test_images_and_the_catalogs_vectors_stay_as_they_are():
    for name in ("digits", "mnist", "abide-nyu"):
        data = parse({"dataset": name}).data
        assert data.mean and data.std
    assert parse({"dataset": "abide-nyu"}).data.mean == "0.0"


ROWS = (1, 2, 7, 400)


@pytest.mark.parametrize("seed", range(8))
def test_sums_have_the_same_bits_however_rows_are_split(seed):
    draws = np.random.default_rng(seed)
    rows = ROWS[seed % len(ROWS)]
    exponents = draws.integers(-44, 38, (1, 6)) if seed else np.array([[-44, -20, 0, 3, 20, 37]])
    numbers = (draws.normal(size=(rows, 6)) * 10.0**exponents).astype(np.float32)
    numbers[:, 5] = 0
    numbers = numbers.astype(np.float32)
    whole = column_sums(numbers)
    order = draws.permutation(rows)
    parts = np.array_split(order, draws.integers(1, 5))
    of_parts = [column_sums(numbers, part) for part in parts if len(part)]
    total = {name: sum(sums[name] for sums in of_parts) for name in whole}
    assert standardization(total) == standardization(whole)  # type: ignore[arg-type]

    mean, std = standardization(whole)
    exact = numbers.astype(np.longdouble)
    assert np.allclose(mean, exact.mean(0).astype(float), rtol=1e-10, atol=1e-300)
    expected = exact.std(0).astype(float)
    expected[expected < np.finfo(np.float32).tiny] = 1
    assert np.allclose(std, expected, rtol=1e-6, atol=0)


def test_bytes_are_on_the_scale_0_to_1():
    numbers = np.random.default_rng(0).integers(0, 256, (50, 3)).astype(np.uint8)
    mean, std = standardization(column_sums(numbers))
    assert np.allclose(mean, (numbers / 255).mean(0)) and np.allclose(std, (numbers / 255).std(0))


def test_sums_that_are_none_are_refused():
    numbers = np.ones((5, 2), np.float32)
    standardization(column_sums(numbers))
    for change in (
        {"counts": np.array([0])},
        {"squares": np.zeros((2, 15), np.int64)},
        {"sums": np.full((2, 8), 2**62)},
    ):
        with pytest.raises(ValueError, match=r"rows|variance|float32"):
            standardization({**column_sums(numbers), **change})


# ---- a run, its record, its export -----------------------------------------------------------------------------------


def words(settings):
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def write_cancer(file):
    """Write three hospitals' rows, of the second 15 % larger and of the third shifted."""
    data = load_breast_cancer()
    draws = np.random.default_rng(0)
    shift = 0.4 * data.data.std(0)
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow([*(name.replace(" ", "_") for name in data.feature_names), "site", "label"])
        for number, index in enumerate(draws.permutation(len(data.data))):
            site = number % 3
            row = (data.data[index], data.data[index] * 1.15, data.data[index] + shift)[site]
            values = [f"{value:.6g}" for value in row]
            writer.writerow([*values, NAMES[site], data.target_names[data.target[index]]])
    return file


def test_a_table_of_three_hospitals_from_check_to_predict(tmp_path, fedskew):
    table = write_cancer(tmp_path / "cancer.csv")
    status, output, errors = fedskew("data", "check", table)
    assert status == 0, errors
    (said,) = re.findall(r"columns are standardized: mean and std of the \d+ training rows", output)
    (rows,) = map(int, re.findall(r"\d+", said))
    dataset = {
        "dataset": f"csv:{table}",
        "classes": "benign,malignant",
        "input-shape": "30",
        "device": "cpu",
        "results": str(tmp_path / "results"),
    }
    accuracies = []
    for seed in range(3):
        run = words({**dataset, "method": "fedavg", "model": "mlp-bn", "seed": seed})
        status, output, errors = fedskew("run", *run)
        assert status == 0 and said in output + errors
    for summary in sorted((tmp_path / "results").glob("*/summary.json")):
        content = json.loads(summary.read_text())
        accuracies.append(content["models"]["average"]["last"]["balanced-accuracy"])
    assert len(accuracies) == 3 and np.mean(accuracies) >= 0.88, accuracies

    (folder,) = (tmp_path / "results").glob("*-seed0-*")
    recorded = json.loads((folder / "settings.json").read_text())
    assert recorded["settings"]["mean"] == recorded["settings"]["std"] == ""
    kept = recorded["standardization"]
    assert kept["rows"] == rows
    assert [column["column"] for column in kept["columns"]] == recorded["input-columns"]
    model = tmp_path / "model"
    status, output, errors = fedskew("export", folder, "--output", model)
    assert status == 0, errors
    with safe_open(model / "model.safetensors", "pt") as file:
        metadata = file.metadata()
    assert metadata["mean"] == ",".join(str(column["mean"]) for column in kept["columns"])
    assert metadata["std"] == ",".join(str(column["std"]) for column in kept["columns"])

    # The export has the run's accuracy on the same test rows.
    data = load(parse(dataset).data)
    tested = tmp_path / "tested.npz"
    np.savez(tested, images=data.test_inputs, labels=data.test_labels)
    status, output, errors = fedskew("predict", model, tested, "--json")
    assert status == 0, errors
    last = json.loads((folder / "summary.json").read_text())["models"]["average"]["last"]
    assert f"{last['balanced-accuracy']:.4f}"[:5] in output


@pytest.mark.parametrize("engine", ["workers", pytest.param("ray", marks=pytest.mark.slow)])
def test_every_engine_and_a_resumed_run_have_the_same_bits(tmp_path, engine):
    settings_of(tmp_path)
    base = {**TRAINING, **KNOWN, "dataset": all_sites(tmp_path), "cache": str(tmp_path / "cache")}

    def run(where, engine, **changes):
        settings = parse({**base, "results": str(tmp_path / where), **changes})
        return execute(settings, engine, lambda line: None, workers=2)

    first = run("here", "inprocess")
    assert run("there", engine)["hash"] == first["hash"]
    raw = run("raw", "inprocess", mean="0", std="1")
    assert raw["hash"]["shared"] != first["hash"]["shared"] and raw["run"] != first["run"]


def test_arrays_are_standardized_too(tmp_path):
    numbers, labels = numbers_of(0)
    settings = fedskew.from_arrays(
        (numbers[:30], labels[:30]), (numbers[30:], labels[30:]), folder=tmp_path / "data"
    )
    partition = {"clients": 2, "partition": "iid", "results": str(tmp_path / "results")}
    fedskew.run({**TRAINING, **settings, **partition})
    (recorded,) = (tmp_path / "results").glob("*/settings.json")
    kept = json.loads(recorded.read_text())["standardization"]
    assert [column["column"] for column in kept["columns"]] == [1, 2, 3, 4]
    scaler = StandardScaler().fit(numbers[:30].astype(np.float64))
    assert [column["mean"] for column in kept["columns"]] == pytest.approx(scaler.mean_.tolist())


# ---- between sites ---------------------------------------------------------------------------------------------------


def federation(folder, policy=None, **changes):
    """Write a federation's folder of sites whose federation.toml states neither mean nor std."""
    usual = {
        "classes": ["healthy", "ill"],
        "input_shape": "4",
        "mean": None,
        "std": None,
        "site": with_mask_keys(),
        "input_columns": list(COLUMNS),
    }
    entries = agreed(**{**usual, **changes})
    write(folder / "federation.toml", entries)
    for number, name in enumerate(NAMES):
        write(folder / name / "federation.toml", entries)
        write(folder / name / "site.toml", site_entries(name=name, policy=policy or ALL))
        write_mask_key(folder / name / "mask.key", name)
        vectors(folder / name / "data.npz", number)
    return folder


def rehearse(
    folder,
    results,
    report_line=lambda line: None,
    **changes,
):
    dataset = f"sites:{folder}/federation.toml"
    settings = parse({**TRAINING, "dataset": dataset, "results": str(results), **changes})
    return execute(settings, "inprocess", report_line, sites=str(folder)), settings.folder


def events(folder, name="north"):
    file = folder / name / "state/audit.jsonl"
    return [json.loads(line) for line in Audit(file).lines()] if file.exists() else []


@pytest.mark.parametrize("method", ["fedavg", "fedshift+fedbn"])
def test_masked_and_plain_sums_make_the_simulations_model(tmp_path, method):
    masked = federation(tmp_path / "masked")
    plain = federation(tmp_path / "plain", sums="plain")
    known = {**KNOWN, "dataset": all_sites(masked), "cache": str(tmp_path / "cache")}
    settings = parse({**TRAINING, **known, "method": method, "results": str(tmp_path / "results")})
    simulated = execute(settings, "inprocess", lambda line: None)
    origin = json.loads((settings.folder / "settings.json").read_text())
    lines = []
    for folder in (masked, plain):
        rehearsed, run = rehearse(folder, tmp_path / folder.name, lines.append, method=method)
        assert rehearsed["hash"]["shared"] == simulated["hash"]["shared"]
        recorded = json.loads((run / "settings.json").read_text())
        assert recorded["standardization"] == origin["standardization"]
        ours = RunFolder(run).rounds()[-1].models["average"]
        assert ours.means == RunFolder(settings.folder).rounds()[-1].models["average"].means
    said = "columns are standardized: mean and std of the 90 training rows"
    assert lines.count(said) == 2

    sums = [entry["sum"] for entry in events(masked) if entry["event"] == "summed"]
    assert "column-sums" in sums[0] and len(sums) == (1 if method == "fedavg" else 2)
    assert not events(plain)

    # Heads in closed form are of standardized columns as well.
    heads = {"method": "fed-lda", "model": "linear", "rounds": 0}
    found = {rehearse(folder, tmp_path / "heads", **heads)[0]["hash"]["deployed"]
             for folder in (masked, plain)}  # fmt: skip
    simulation = parse({**TRAINING, **known, **heads, "results": str(tmp_path / "heads")})
    assert found == {execute(simulation, "inprocess", lambda line: None)["hash"]["deployed"]}


def test_a_run_between_sites_resumes_exports_and_predicts(tmp_path, fedskew):
    folder = federation(tmp_path / "sites")
    whole, run = rehearse(folder, tmp_path / "whole")
    before = events(folder)

    def stop(line):
        if line.startswith("round   1"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rehearse(folder, tmp_path / "parts", stop)
    site_runtime.cache_clear()
    resumed, _ = rehearse(folder, tmp_path / "parts")
    assert resumed["hash"] == whole["hash"]
    assert [entry["event"] for entry in events(folder)] == ["summed", "sum repeated"]
    assert before[0]["sum"] == events(folder)[1]["sum"]

    model = tmp_path / "model"
    status, _, errors = fedskew("export", run, "--output", model)
    assert status == 0, errors
    with safe_open(model / "model.safetensors", "pt") as file:
        means = [float(mean) for mean in file.metadata()["mean"].split(",")]
    rows_NF = np.concatenate([numbers_of(site)[0][:30] for site in range(3)])
    assert means == pytest.approx(rows_NF.astype(np.float64).mean(0).tolist())
    assert fedskew("predict", model, folder / "north/data.npz")[0] == 0


@pytest.mark.parametrize("place", ["sums", "squares"])
def test_a_limb_that_could_overflow_a_sum_is_no_answer(place):
    upload = ColumnSums(2).upload
    rows_NF = np.array([[1, -3], [2, 5]], np.float32)
    answer = {name: torch.from_numpy(array) for name, array in column_sums(rows_NF).items()}
    upload.validate(answer, 2, 2)
    answer[place][0, 0] = 2**63 - 1
    with pytest.raises(InvalidReply, match="a limb of the columns' sums"):
        upload.validate(answer, 2, 2)


def test_a_number_that_is_not_finite_has_no_sum():
    for value in (np.nan, np.inf):
        with pytest.raises(ValueError, match="not finite"):
            column_sums(np.array([[1], [value]], np.float32))


def test_a_site_that_lets_no_sums_leave_is_named_with_the_remedy(tmp_path):
    usual = {"allow": ["model", "scores", "class-counts"]}
    folder = federation(tmp_path / "sites")
    write(folder / "east/site.toml", site_entries(name="east", policy=usual))
    with pytest.raises(DataError, match=r"mean and std .*site east.*column-sums") as error:
        rehearse(folder, tmp_path / "results")
    assert "state mean and std in federation.toml" in str(error.value)
    # With numbers of the agreement nobody is asked.
    stated = federation(
        tmp_path / "stated", policy=usual, mean=[50, 80_000, 0, 7], std=[5, 2e4, 1e-6, 1]
    )
    rehearse(stated, tmp_path / "results")
    assert not events(stated)


def test_an_agreement_states_both_or_neither_and_neither_for_tables_alone(tmp_path):
    def read(**changes):
        usual = {"classes": ["healthy", "ill"], "input_shape": "4", "mean": None, "std": None}
        return read_agreement(write(tmp_path / "federation.toml", agreed(**{**usual, **changes})))

    assert read().mean == read().std == ()
    assert read(mean=[0], std=[1]).mean == (0,)
    for changes, key in (
        ({"mean": [0]}, "std"),
        ({"std": [1]}, "mean"),
        ({"input_shape": "1x8x8"}, "mean"),
    ):
        with pytest.raises(DataError, match=key):
            read(**changes)


@pytest.mark.parametrize(
    ("options", "stated"),
    [([], False), (["--mean", "0", "--std", "1"], True), (["--mean", "0"], True)],
)
def test_federation_new_states_no_numbers_of_a_table(tmp_path, fedskew, options, stated):
    folder = tmp_path / "federation"
    answer = fedskew(
        "federation", "new", folder, "--name", "ward", "--address", "127.0.0.1:9000",
        "--classes", "healthy,ill", "--input-shape", "4", *options,
    )  # fmt: skip
    assert answer[0] == 0, answer
    text = (folder / "federation.toml").read_text()
    assert ("\nmean = " in text) == ("\nstd = " in text) == stated
