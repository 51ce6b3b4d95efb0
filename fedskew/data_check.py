"""What the command line says of data: the summary of `fedskew data check`, and warnings that all commands print."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from data import DataError, Dataset, DataSettings, Federation, SettingError, federate, load
from data.data_warnings import refuse_untrainable, warnings_of
from data.errors import Remedy, options_of, text_of
from data.readers.tables import columns_of
from data.readers.user_data import guess_settings, path_of
from data.standardization import sentence_about
from data.text import in_shell
from fedskew.formatting import console, numeric, terminal_table
from server_app.keys import built
from server_app.run_settings import model_line
from server_app.settings import parse

out = console()


def check(path: str, given: Mapping[str, Any], cache: str) -> None:
    """Read all of the user's data by the settings `given`, and print what they are and the command that uses them.

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
    images = [data.train.inputs, data.test.inputs] if len(data.shape) == 3 else []
    wide = [part for part in images if isinstance(part, np.ndarray) and part.dtype == np.float32]
    if any(part.min() < 0 or part.max() > 1 for part in wide):
        notes.append("images of floating-point numbers are taken as 0..1, and some are outside")

    settings, federation, refusal = partitioned(chosen, len(data.train.labels), cache)
    if federation is not None:
        run = parse({**settings, "cache": cache})
        refuse_untrainable(run.data, federation)
        if federation.standardized_rows:
            notes.append(sentence_about(federation.standardized_rows))

    out.print(f"{path} will work.", style="green")
    for note in notes:
        out.print(f"Note: {text_of(note)}.", style="yellow", markup=False, soft_wrap=True)
        print_other_checks(given, note)
    if federation is not None:
        print_warnings(run.data, federation, out)
    print_counts(data)
    if refusal:
        refusal = f"With the default partition it will not: {refusal}"
        out.print(refusal, style="yellow", markup=False)
    from fedskew.diagnosis.planned import line_of, whose_partition  # scipy takes its time to load

    # Of a single client there is no diagnosis.
    if federation is not None and (diagnosis := line_of(federation)):
        out.print(f"{whose_partition(run.data)}: {diagnosis}", markup=False)
    out.print(f"Model: {model_line(run)}")
    print(f"fedskew run {as_words(settings)}")


def partitioned(
    chosen: Mapping[str, Any], samples: int, cache: str
) -> tuple[Mapping[str, Any], Federation | None, str]:
    """Return the settings with a partition that fits the samples, what it gives, and why the default one does not fit.

    Without one that fits the settings are `chosen`, and there is no federation.
    """
    # The default partition first; where it does not fit, ever simpler ones.
    partitions: tuple[dict[str, Any], ...] = (
        {},
        {"partition": "iid", "clients": min(10, max(2, samples // 10))},
        {"partition": "iid", "clients": 1},
    )
    refusal = ""
    for partition in partitions:
        settings = {**chosen, **partition, **chosen}  # those of the partition come last
        try:
            run = parse({**settings, "cache": cache})
            return settings, federate(run.data, run.general.seed), refusal
        except SettingError as error:
            refusal = refusal or str(error)
    return chosen, None, refusal


def print_warnings(
    settings: DataSettings, federation: Federation, to: Console, before: set[str] | None = None
) -> None:
    """Print what is odd about the data of a run, a line each; what `before` holds is not repeated."""
    printed = set[str]() if before is None else before
    for sentence in warnings_of(settings, federation):
        if sentence not in printed:
            printed.add(sentence)
            to.print(f"Warning: {sentence}.", style="yellow", markup=False, soft_wrap=True)


def print_counts(data: Dataset) -> None:
    """Print the samples of each class in each split."""
    splits = {"train": data.train.labels, "test": data.test.labels}
    if data.val is not None:
        splits["val"] = data.val.labels
    table = terminal_table(*numeric("class", *splits))
    counts = [np.bincount(labels, minlength=data.num_classes) for labels in splits.values()]
    for name, *row in zip(data.class_names, *counts, strict=True):
        table.add_row(name, *(str(count) if count else Text("0", "yellow") for count in row))
    out.print(table)


def print_columns(given: Mapping[str, Any]) -> None:
    """Print a row per column of a CSV file; nothing for other data, and where the file itself is refused."""
    if not str(given["dataset"]).startswith("csv:"):
        return
    settings = built(DataSettings, given)
    try:
        columns = columns_of(path_of(settings.dataset, settings), settings)
    except DataError:
        return  # which the check says
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
