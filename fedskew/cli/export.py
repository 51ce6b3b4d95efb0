"""`fedskew export` and `fedskew predict`: write a model, and use it."""

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from data import DataError, SettingError, require
from fedskew.cli.options import AsJson, Settings, checked_texts
from fedskew.formatting import console, numeric, percent, terminal_table

# These import torch, which takes seconds: the commands import them after their first checks.
if TYPE_CHECKING:
    from fedskew.export.predict import Prediction
    from server_app.record import ModelNumbers

out = console()
SHOWN_ROWS = 20
"""Predictions that a terminal gets; --output and --json get all."""


def export(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    model: Annotated[
        str, typer.Option(help="The deployed model to export; default: the method's own.")
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option(help="Folder to write; default: export/MODEL in the run's folder."),
    ] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Also write ONNX.")] = False,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Also export an unfinished run.")
    ] = False,
) -> None:
    """Write a run's deployed model as safetensors, with a model card."""
    from fedskew.export import from_run
    from server_app.run_folder import RunFolder

    trained = from_run.TrainedRun(RunFolder(run, moved=True), model, unfinished)
    for file in from_run.export(trained, output or trained.usual_folder, onnx):
        out.print(str(file), markup=False)
    about = trained.description
    which = f"model {about.model} of {about.method}, round {about.round}"
    console(stderr=True).print(which, markup=False, style="dim")


def predict(
    model: Annotated[Path, typer.Argument(help="A folder that `fedskew export` wrote.")],
    data: Annotated[
        Path,
        typer.Argument(
            help="A table (all rows), an image, a folder of images or class folders, an npz file, or "
            "a file or folder of train and test (its test samples)."
        ),
    ],
    site: Annotated[
        str, typer.Option(help="The site whose batch norm is used, if sites keep it.")
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write all predictions as CSV, with the table's own columns."
        ),
    ] = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Predict with an exported model; with known classes, also print the metrics."""
    is_csv = output is None or output.suffix.lower() == ".csv"
    require(is_csv, "--output", str(output), "must end in .csv", "--json prints JSON")
    for path in (model, data):
        if not path.exists():
            raise DataError("there is no such file or folder", where=str(path))
    stated = checked_texts(settings, alone=False)
    from client_app.process import choose_device
    from fedskew.export.model_folder import READ_BY, ModelFolder
    from fedskew.export.predict import predict as predict_inputs
    from fedskew.export.predict import read_inputs

    reading: dict[str, Any] = {}
    for key, value in stated.items():
        field = key.replace("-", "_")
        is_reading = field in READ_BY
        require(is_reading, key, value, "says nothing of how inputs are read")
        reading[field] = value
    stderr = console(stderr=True)
    folder = ModelFolder(model)
    about = folder.description
    inputs = read_inputs(data, about, choose_device("auto"), replace(about.data, **reading))
    for note in inputs.read.notes:
        stderr.print(f"Note: {note}.", style="yellow", markup=False, soft_wrap=True)
    predictions, numbers = predict_inputs(folder, inputs, site)
    if output is not None:
        write_csv(output, predictions)
        wrote = f"{output}: {len(predictions)} rows"
        stderr.print(wrote, markup=False, soft_wrap=True)
    which = f"model {about.model} of {about.method}, round {about.round}"
    (stderr if as_json else out).print(which, markup=False, style="dim")
    if as_json:
        print(json.dumps(predictions_json(predictions, numbers, inputs.read.left_out), indent=2))
        return
    out.print(predictions_table(predictions))
    others = len(predictions) - SHOWN_ROWS
    if others > 0:
        place = "; --output FILE writes all" if output is None else f" in {output}"
        out.print(f"and {others} more{place}", style="dim", markup=False, soft_wrap=True)
    if numbers is not None:
        out.print(numbers_table(numbers, about.class_names))


def predictions_json(
    predictions: "list[Prediction]", numbers: "ModelNumbers | None", left_out: Sequence[str]
) -> dict[str, Any]:
    """Return the predictions as `--json` prints them; the metrics only where the classes are known.

    `left_out` says what is missing in each row that is left out.
    """
    from server_app.record import to_json

    rows = []
    for prediction in predictions:
        entries = asdict(prediction).items()
        rows.append({key: value for key, value in entries if value not in (None, {})})
    result: dict[str, Any] = {"predictions": rows}
    if left_out:
        result["left-out"] = list(left_out)
    if numbers is not None:
        result["metrics"] = to_json(numbers)
    return result


def cells_of(prediction: "Prediction") -> dict[str, Any]:
    """Return a prediction's cells by column: its place, the file's own columns, the prediction and the label.

    A row of a table has `row`, its line, in place of `input`. There is one column `p CLASS` per class; label is empty
    where the true class is unknown. One of the file's columns that has the name of another one here is called
    `NAME of the file`.
    """
    cells: dict[str, Any] = {"input": prediction.input}
    if prediction.row is not None:
        cells = {"row": prediction.row}
    own = {
        "prediction": prediction.prediction,
        "probability": prediction.probability,
        "label": prediction.label or "",
    }
    for name, probability in prediction.probabilities.items():
        own[f"p {name}"] = probability
    taken = {*cells, *own}
    for name, text in prediction.columns.items():
        cells[f"{name} of the file" if name in taken else name] = text
    return cells | own


def write_csv(file: Path, predictions: "list[Prediction]") -> None:
    """Write one row per input, with the columns of `cells_of`. Raises SettingError where it cannot be written."""
    rows = [cells_of(prediction) for prediction in predictions]
    try:
        with file.open("w", newline="", encoding="utf-8") as opened:
            writer = csv.DictWriter(opened, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise SettingError("--output", str(file), f"cannot be written: {error.strerror}") from error


def predictions_table(predictions: "list[Prediction]") -> Table:
    """Return the first predictions, wrong ones in red where the true class is known."""
    place = "input" if predictions[0].row is None else "row"
    table = terminal_table(place, "prediction", "probability", "label")
    for prediction in predictions[:SHOWN_ROWS]:
        wrong = prediction.label not in (None, prediction.prediction)
        cells = [
            str(prediction.row or prediction.input),
            prediction.prediction,
            f"{prediction.probability:.3f}",
            prediction.label or "",
        ]
        # As Text, because names may hold brackets, which rich reads as styles.
        table.add_row(*map(Text, cells), style="red" if wrong else "")
    return table


def numbers_table(numbers: "ModelNumbers", classes: tuple[str, ...]) -> Table:
    """Return accuracy, balanced accuracy, AUROC, AUPRC and the recall of every class, in percent.

    AUROC and AUPRC are macro means over the classes; of two classes AUPRC is the positive class's.
    """
    table = terminal_table("", *numeric(""), header=False)
    of_class = f" of {numbers.positive_class}" if numbers.positive_class else ""
    shown = {
        "accuracy": "accuracy",
        "balanced-accuracy": "balanced accuracy",
        "auroc": "AUROC",
        "auprc": f"AUPRC{of_class}",
    }
    for key, words in shown.items():
        if key in numbers.means:
            table.add_row(Text(words), percent(numbers[key]))
    for name, recall in zip(classes, numbers.recall, strict=True):
        table.add_row(Text(f"recall of {name}"), percent(recall))
    return table
