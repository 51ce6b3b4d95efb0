"""A hospital's table at the commands: predictions for every row of another table, and what fills its gaps."""

import csv
import json

import numpy as np
import pytest

import fedskew as workbench

HEADER = ("row_id", "patient", "ward", "age", "bmi", "diagnosis")


def rows_of(count, start=0):
    """Return rows whose age and bmi tell the class; `bmi` lacks a value in every tenth row, and `age` in row 6."""
    draws = np.random.default_rng(start)
    rows = []
    for k in range(count):
        ill = k % 2
        age, bmi = 40 + 30 * ill + draws.normal(), 20 + 10 * ill + draws.normal()
        known = (str(9000 + start + k), f"p{start + k // 2}", ("east", "west")[ill])
        gaps = ("" if k == 5 else f"{age:.1f}", "NA" if k % 10 == 9 else f"{bmi:.2f}")
        cells = (*known, *gaps, ("Benign", "Malignant")[ill])
        rows.append(dict(zip(HEADER, cells, strict=True)))
    return rows


def write(file, rows, header=HEADER):
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, header, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return file


def exported(root, missing):
    """Train on a table with gaps, and return the run's folder and that of its exported model."""
    settings = {
        "dataset": f"csv:{write(root / 'train.csv', rows_of(120))}",
        "columns": "label=diagnosis,ignore=row_id,ward",
        "classes": "Benign,Malignant",
        "input-shape": "2",
        "missing": missing,
        "mean": "55,25",
        "std": "15,5",
        "partition": "iid",
        "clients": 2,
        "model": "linear",
        "rounds": 3,
        "batch-size": 16,
        "learning-rate": 0.1,
        "device": "cpu",
        "results": str(root / "results"),
    }
    result = workbench.run(settings)
    result.export(root / "model")
    return result.folder, root / "model"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("median"), "median")


@pytest.fixture(scope="module")
def model(trained):
    """The folder of a model that keeps medians."""
    return trained[1]


@pytest.fixture
def predicted(fedskew):
    """Return a function that returns the JSON of predictions, and stderr."""

    def predict(*words):
        status, output, errors = fedskew("predict", *words, "--json")
        assert status == 0, errors
        return json.loads(output), errors

    return predict


def probabilities(answer):
    return [row["probabilities"] for row in answer["predictions"]]


def test_all_rows_are_predicted_in_order_with_the_columns_of_the_file(
    model, tmp_path, fedskew, predicted
):
    rows = rows_of(31, start=500)
    file = write(tmp_path / "new.csv", rows)
    out = tmp_path / "predictions.csv"
    status, output, errors = fedskew("predict", model, file, "--output", out)
    assert status == 0 and f"{out}: 31 rows" in errors and "balanced accuracy" in output
    assert "missing = median fills empty cells: 1 of age, 3 of bmi" in errors
    written = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    assert [row["row"] for row in written] == [str(line) for line in range(2, 33)]
    for name in ("row_id", "patient", "ward", "diagnosis"):
        assert [row[name] for row in written] == [row[name] for row in rows]
    assert not {"age", "bmi"} & written[0].keys()
    right = [row["label"] == row["prediction"] for row in written]

    answer, _ = predicted(model, file)
    assert answer["metrics"]["accuracy"] == pytest.approx(np.mean(right)) and np.mean(right) > 0.9
    first = answer["predictions"][0]
    assert first["row"] == 2 and first["columns"]["patient"] == "p500"

    without = write(tmp_path / "without.csv", rows[::-1], ("bmi", "note", "age", "patient"))
    unlabeled, _ = predicted(model, without)
    assert unlabeled.keys() == {"predictions"} and "label" not in unlabeled["predictions"][0]
    assert probabilities(unlabeled) == probabilities(answer)[::-1]


def test_predictions_of_a_file_with_predictions_keep_those_of_the_file(model, tmp_path, fedskew):
    rows = [row | {"probability": "sure", "p Malignant": "high"} for row in rows_of(3)]
    file = write(tmp_path / "earlier.csv", rows, tuple(rows[0]))
    out = tmp_path / "later.csv"
    assert fedskew("predict", model, file, "--output", out)[0] == 0
    for row in csv.DictReader(out.read_text(encoding="utf-8").splitlines()):
        assert row["probability of the file"] == "sure" and row["p Malignant of the file"] == "high"
        assert 0 <= float(row["p Malignant"]) <= float(row["probability"]) <= 1


def test_a_table_with_tabs_is_predicted_as_one_with_commas(model, tmp_path, predicted):
    file = write(tmp_path / "new.csv", rows_of(3))
    with_tabs = tmp_path / "new.tsv"
    with_tabs.write_text(file.read_text().replace(",", "\t"))
    assert probabilities(predicted(model, with_tabs)[0]) == probabilities(predicted(model, file)[0])


def test_columns_of_arrays_are_matched_by_name_where_they_have_names(model, tmp_path, predicted):
    rows = [row for row in rows_of(30, start=700) if row["age"] and row["bmi"] != "NA"]
    expected, _ = predicted(model, write(tmp_path / "new.csv", rows))
    numbers = np.float32([[row["bmi"], row["age"]] for row in rows])
    named = {"images": numbers, "columns": np.array(["bmi", "age"])}
    for arrays in (named, {"images": numbers[:, ::-1]}):
        np.savez(tmp_path / "new.npz", **arrays)
        answer, errors = predicted(model, tmp_path / "new.npz")
        for one, other in zip(probabilities(answer), probabilities(expected), strict=True):
            assert [*one.values()] == pytest.approx([*other.values()], abs=1e-6)
        assert ("order counts" in errors) == ("columns" not in arrays)


def test_another_column_is_refused_by_file(model, tmp_path, fedskew):
    right = write(tmp_path / "new.csv", rows_of(3))
    wrong = write(tmp_path / "wrong.csv", rows_of(3), ("bmi", "years"))
    _, _, errors = fedskew("predict", model, right, "--set", "columns=label=age")
    assert "there is no column 'age' with the label" in errors
    status, _, errors = fedskew("predict", model, wrong)
    assert (status, errors.count("\n")) == (2, 1) and str(wrong) in errors


def test_a_gap_is_filled_by_the_training_rows_of_the_model_alone(trained, tmp_path, predicted):
    run, model = trained
    medians = json.loads((run / "settings.json").read_text())["medians"]
    assert medians.keys() == {"age", "bmi"}
    rows = [{"age": "", "bmi": "21"}, {"age": "44", "bmi": ""}, {"age": "44", "bmi": "21"}]
    filled = [{"age": str(medians["age"]), "bmi": "21"}, {"age": "44", "bmi": str(medians["bmi"])}]
    answer, _ = predicted(model, write(tmp_path / "gaps.csv", rows, ("age", "bmi")))
    expected, _ = predicted(model, write(tmp_path / "f.csv", filled, ("age", "bmi")))
    assert probabilities(answer)[:2] == probabilities(expected)


def test_no_gap_is_filled_where_the_user_says_so(model, tmp_path, fedskew):
    """In a table and in an npz file, although the model keeps medians."""
    table = write(tmp_path / "gaps.csv", [{"age": "", "bmi": "21"}], ("age", "bmi"))
    arrays = tmp_path / "gaps.npz"
    np.savez(arrays, images=np.float32([[np.nan, 21]]), columns=np.array(["age", "bmi"]))
    for file in (table, arrays):
        assert fedskew("predict", model, file)[0] == 0
        status, _, errors = fedskew("predict", model, file, "--set", "missing=refuse")
        assert status == 2 and "missing" in errors, errors


def test_a_model_without_medians_fills_no_gap(tmp_path, fedskew, predicted):
    _, model = exported(tmp_path, "drop")
    rows = [{"age": "", "bmi": "21"}, {"age": "44", "bmi": "21"}]
    gaps = write(tmp_path / "gaps.csv", rows, ("age", "bmi"))
    answer, errors = predicted(model, gaps)
    assert [row["row"] for row in answer["predictions"]] == [3] and len(answer["left-out"]) == 1
    assert "missing = drop leaves out 1 of the rows" in errors
    assert fedskew("predict", model, gaps, "--set", "missing=median")[0] == 2
