"""A hospital's table at the commands: predictions for every row of another table, and what fills its gaps."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import FedSkew

HEADER = ("row_id", "patient", "ward", "age", "bmi", "diagnosis")


def rows_of(count: int, start: int = 0) -> list[dict[str, str]]:
    """Return rows whose age and bmi tell the class; `bmi` lacks a value in every tenth row, and `age` in row 6."""
    draws = np.random.default_rng(start)
    rows = []
    for k in range(count):
        ill = k % 2
        rows.append(
            {
                "row_id": str(9000 + start + k),
                "patient": f"p{start + k // 2}",
                "ward": ("east", "west")[k % 2],
                "age": "" if k == 5 else f"{40 + 30 * ill + draws.normal():.1f}",
                "bmi": "NA" if k % 10 == 9 else f"{20 + 10 * ill + draws.normal():.2f}",
                "diagnosis": ("Benign", "Malignant")[ill],
            }
        )
    return rows


def write(file: Path, rows: Sequence[dict[str, str]], header: Sequence[str] = HEADER) -> Path:
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, header, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return file


def words(**settings: str) -> list[str]:
    return [
        word
        for key, value in settings.items()
        for word in ("--set", f"{key.replace('_', '-')}={value}")
    ]


COLUMNS = "label=diagnosis,ignore=row_id,ward"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The settings of a run on a table with gaps, and its file."""
    root = tmp_path_factory.mktemp("trained")
    return {
        "root": root,
        "settings": {
            "dataset": f"csv:{write(root / 'train.csv', rows_of(120))}",
            "columns": COLUMNS,
            "classes": "Benign,Malignant",
            "input_shape": "2",
            "mean": "55,25",
            "std": "15,5",
            "partition": "iid",
            "clients": "2",
            "model": "linear",
            "rounds": "3",
            "batch_size": "16",
            "learning_rate": "0.1",
            "device": "cpu",
            "method": "fedavg",
        },
    }


def model(trained: dict[str, Any], fedskew: FedSkew, missing: str = "median") -> Path:
    """Return the folder of an exported model, trained once."""
    folder: Path = trained["root"] / missing
    if not (folder / "model").exists():
        settings = {**trained["settings"], "missing": missing, "results": str(folder / "results")}
        status, _, errors = fedskew("run", *words(**settings))
        assert status == 0, errors
        (run,) = (folder / "results").iterdir()
        assert fedskew("export", run, "--output", folder / "model")[0] == 0
    return folder / "model"


def predicted(fedskew: FedSkew, *arguments: object) -> tuple[dict[str, Any], str]:
    status, output, errors = fedskew("predict", *arguments, "--json")
    assert status == 0, errors
    return json.loads(output), errors


def test_all_rows_are_predicted_in_order_with_the_columns_of_the_file(
    trained: dict[str, Any], tmp_path: Path, fedskew: FedSkew
) -> None:
    folder = model(trained, fedskew)
    rows = rows_of(31, start=500)
    file = write(tmp_path / "new.csv", rows)
    out = tmp_path / "predictions.csv"
    status, output, errors = fedskew("predict", folder, file, "--output", out)
    assert status == 0 and f"{out}: 31 rows" in errors and "balanced accuracy" in output
    assert "missing = median fills empty cells: 1 of age, 3 of bmi" in errors
    written = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    assert [row["row"] for row in written] == [str(line) for line in range(2, 33)]
    for name in ("row_id", "patient", "ward", "diagnosis"):
        assert [row[name] for row in written] == [row[name] for row in rows]
    assert not {"age", "bmi"} & written[0].keys()
    right = [row["label"] == row["prediction"] for row in written]

    answer, _ = predicted(fedskew, folder, file)
    assert answer["metrics"]["accuracy"] == pytest.approx(np.mean(right)) and np.mean(right) > 0.9
    first = answer["predictions"][0]
    assert first["row"] == 2 and first["columns"]["patient"] == "p500"

    without = write(tmp_path / "without.csv", rows[::-1], ("bmi", "note", "age", "patient"))
    unlabeled, _ = predicted(fedskew, folder, without)
    assert unlabeled.keys() == {"predictions"} and "label" not in unlabeled["predictions"][0]
    probabilities = [row["probabilities"] for row in unlabeled["predictions"]]
    assert probabilities == [row["probabilities"] for row in answer["predictions"][::-1]]


def test_an_input_is_no_label(trained: dict[str, Any], tmp_path: Path, fedskew: FedSkew) -> None:
    folder = model(trained, fedskew)
    file = write(tmp_path / "new.csv", rows_of(3))
    status, _, errors = fedskew("predict", folder, file, *words(columns="label=age"))
    assert status == 2 and "there is no column 'age' with the label" in errors


def test_a_gap_is_filled_by_the_training_rows_of_the_model_alone(
    trained: dict[str, Any], tmp_path: Path, fedskew: FedSkew
) -> None:
    folder = model(trained, fedskew)
    (settings,) = (trained["root"] / "median" / "results").glob("*/settings.json")
    medians = json.loads(settings.read_text())["medians"]
    assert medians.keys() == {"age", "bmi"}
    rows = [{"age": "", "bmi": "21"}, {"age": "44", "bmi": ""}, {"age": "44", "bmi": "21"}]
    filled = [{"age": str(medians["age"]), "bmi": "21"}, {"age": "44", "bmi": str(medians["bmi"])}]
    gaps = write(tmp_path / "gaps.csv", rows, ("age", "bmi"))
    answer, _ = predicted(fedskew, folder, gaps)
    expected, _ = predicted(fedskew, folder, write(tmp_path / "f.csv", filled, ("age", "bmi")))
    for one, other in zip(answer["predictions"], expected["predictions"], strict=False):
        assert one["probabilities"] == other["probabilities"]


def test_no_gap_is_filled_where_the_user_says_so(
    trained: dict[str, Any], tmp_path: Path, fedskew: FedSkew
) -> None:
    """In a table and in an npz file, although the model keeps medians."""
    folder = model(trained, fedskew)
    table = write(tmp_path / "gaps.csv", [{"age": "", "bmi": "21"}], ("age", "bmi"))
    arrays = tmp_path / "gaps.npz"
    np.savez(arrays, images=np.float32([[np.nan, 21]]), columns=np.array(["age", "bmi"]))
    for file in (table, arrays):
        assert fedskew("predict", folder, file)[0] == 0
        status, _, errors = fedskew("predict", folder, file, *words(missing="refuse"))
        assert status == 2 and "missing" in errors, errors


def test_a_model_without_medians_fills_no_gap(
    trained: dict[str, Any], tmp_path: Path, fedskew: FedSkew
) -> None:
    folder = model(trained, fedskew, "drop")
    rows = [{"age": "", "bmi": "21"}, {"age": "44", "bmi": "21"}]
    gaps = write(tmp_path / "gaps.csv", rows, ("age", "bmi"))
    answer, errors = predicted(fedskew, folder, gaps)
    assert [row["row"] for row in answer["predictions"]] == [3] and len(answer["left-out"]) == 1
    assert "missing = drop leaves out 1 of the rows" in errors
    assert fedskew("predict", folder, gaps, *words(missing="median"))[0] == 2
