"""`fedskew data check`: a summary of a user's own data, and a command that uses them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.text import Text

from data import DataError, Dataset, DataSettings, Federation, SettingError, federate, load
from data.data_warnings import refuse_untrainable
from data.errors import Remedy, options_of, text_of
from data.readers.tables import columns_of
from data.readers.user_data import guess_settings, path_of
from data.standardization import sentence_about
from data.text import in_shell
from fedskew.cli.terminal import console
from fedskew.data_warnings import print_warnings
from fedskew.diagnosis.planned import line_of, whose_partition
from fedskew.formatting import numeric, terminal_table
from server_app.keys import built
from server_app.run_settings import RunSettings, model_line
from server_app.settings import parse

out = console()


@dataclass(frozen=True)
class Checked:
    """Data that can be trained on."""

    data: Dataset
    notes: list[Remedy]
    """What a user has to know, a sentence each."""
    run: RunSettings
    """With the partition that fits, else with the default one."""
    settings: dict[str, Any]
    """The settings of a run on them, by key."""
    federation: Federation | None
    """None where no partition fits."""
    refusal: str
    """Why the default partition does not fit; empty where it does."""


def look_through(given: Mapping[str, Any], cache: str) -> Checked:
    """Read all of the user's data by the settings `given`, and find those that are left out.

    Raises:
        DataError: data that cannot be trained on, in one sentence with the remedy.
        SettingError: a setting that is wrong, or changes nothing here.
    """
    guess = guess_settings(str(given["dataset"]), built(DataSettings, given))
    chosen: dict[str, Any] = {"dataset": given["dataset"]}
    for key, value in {**guess.settings, **given}.items():
        default = getattr(DataSettings, key.replace("-", "_"), value)
        chosen[key] = type(default)(value)
    run = parse({**chosen, "cache": cache})
    data = load(run.data)
    notes = list(guess.notes)
    if len(data.shape) == 3 and any(map(beyond_one, (data.train_inputs, data.test_inputs))):
        notes.append("images of floating-point numbers are taken as 0..1, and some are outside")

    # The default partition first; where it does not fit, ever simpler ones.
    few_clients = min(10, max(2, len(data.train_labels) // 10))
    partitions: tuple[dict[str, Any], ...] = (
        {},
        {"partition": "iid", "clients": few_clients},
        {"partition": "iid", "clients": 1},
    )
    refusal = ""
    for partition in partitions:
        try:
            fitting = parse({**chosen, **partition, **given, "cache": cache})
            federation = federate(fitting.data, fitting.general.seed)
        except SettingError as error:
            refusal = refusal or str(error)
            continue
        refuse_untrainable(fitting.data, federation)
        if federation.standardized_rows:
            notes.append(sentence_about(federation.standardized_rows))
        settings = {**chosen, **partition, **chosen}  # those of the partition come last
        return Checked(data, notes, fitting, settings, federation, refusal)
    return Checked(data, notes, run, chosen, None, refusal)


def beyond_one(inputs: object) -> bool:
    """Return whether images are floating-point numbers on another scale than 0..1."""
    if not isinstance(inputs, np.ndarray) or inputs.dtype != np.float32:
        return False
    return bool(inputs.min() < 0 or inputs.max() > 1)


def print_check(path: str, checked: Checked, given: Mapping[str, Any]) -> None:
    """Print what the data are, and last the command that trains on them."""
    out.print(f"{path} will work.", style="green")
    for note in checked.notes:
        out.print(f"Note: {text_of(note)}.", style="yellow", markup=False, soft_wrap=True)
        print_other_checks(given, note)
    if checked.federation is not None:
        print_warnings(checked.run.data, checked.federation, out)

    data = checked.data
    splits = {"train": data.train_labels, "test": data.test_labels}
    if data.val_labels is not None:
        splits["val"] = data.val_labels
    table = terminal_table(*numeric("class", *splits))
    counts = [np.bincount(labels, minlength=data.num_classes) for labels in splits.values()]
    for name, *row in zip(data.class_names, *counts, strict=True):
        table.add_row(name, *(str(count) if count else Text("0", "yellow") for count in row))
    out.print(table)

    if checked.refusal:
        refusal = f"With the default partition it will not: {checked.refusal}"
        out.print(refusal, style="yellow", markup=False)
    # Of a single client there is no diagnosis.
    if checked.federation is not None and (diagnosis := line_of(checked.federation)):
        out.print(f"{whose_partition(checked.run.data)}: {diagnosis}", markup=False)
    out.print(f"Model: {model_line(checked.run)}")
    print(f"fedskew run {as_words(checked.settings)}")


def print_columns(given: Mapping[str, Any]) -> None:
    """Print a row per column of a CSV file; nothing for other data, and where the file itself is refused."""
    if not str(given["dataset"]).startswith("csv:"):
        return
    settings = built(DataSettings, given)
    try:
        columns = columns_of(path_of(settings.dataset, settings), settings)
    except DataError:
        return  # which `look_through` says
    table = terminal_table("column", "role", "type", *numeric("range", "missing"))
    for column in columns:
        missing = Text(str(column.missing), "yellow" if column.missing else "")
        texts = map(Text, (column.name, column.role, column.type, column.range))
        table.add_row(*texts, missing)
    out.print(table)


def print_other_checks(given: Mapping[str, Any], remedy: Remedy) -> None:
    """Print the command that checks the data with each setting that a remedy or a note names.

    Args:
        given: the settings of the check that gave the remedy, by key.
        remedy: or a note.
    """
    for option in options_of(remedy):
        settings = {**given, option.key: option.value}
        dataset = in_shell(settings.pop("dataset"))
        print(f"fedskew data check {dataset} {as_words(settings)}".rstrip())


def as_words(settings: Mapping[str, Any]) -> str:
    """Return settings as words of a command line that a shell does not change."""
    words = []
    for key, value in settings.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        words.append(f"--set {in_shell(f'{key}={text}')}")
    return " ".join(words)
