"""`fedskew data check`: a summary of a user's own data, and a command that uses them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from data import Dataset, DataSettings, Federation, SettingError, federate, load
from data.data_warnings import refuse_untrainable
from data.errors import Remedy, options_of, text_of
from data.readers.user_data import guess_settings
from data.standardization import sentence_about
from data.text import in_shell
from fedskew.cli.terminal import console
from server_app.keys import built
from server_app.run_settings import model_line
from server_app.settings import parse

out = console()


@dataclass(frozen=True)
class Checked:
    """Data that can be trained on."""

    data: Dataset
    notes: list[Remedy]
    """What a user has to know, a sentence each."""
    model: str
    """The name and the size of the model that a run trains."""
    settings: dict[str, Any]
    """The settings of a run on them, by key."""
    federation: Federation | None
    """None where no partition fits."""
    partitioned: DataSettings
    """The settings of the federation."""
    refusal: str
    """Why the default partition does not fit; empty where it does."""


def look_through(given: Mapping[str, Any], cache: str) -> Checked:
    """Read all of the user's data by the settings `given`, and find those that are left out.

    Raises:
        DataError: data that cannot be trained on, in one sentence with the remedy.
        SettingError: a setting that is wrong, or changes nothing here.
    """
    given = {key: value for key, value in given.items() if value not in ("", None)}
    guess = guess_settings(str(given["dataset"]), built(DataSettings, given))
    chosen: dict[str, Any] = {"dataset": given["dataset"]}
    for key, value in {**guess.settings, **given}.items():
        default = getattr(DataSettings, key.replace("-", "_"), value)
        chosen[key] = type(default)(value)
    run = parse({**chosen, "cache": cache})
    settings = run.data
    data = load(settings)
    notes = list(guess.notes)
    if beyond_one(data):
        notes.append("images of floating-point numbers are taken as 0..1, and some are outside")

    # The default partition first; where it does not fit, ever simpler ones.
    samples = len(data.train_labels)
    few_clients = min(10, max(2, samples // 10))
    partitions: tuple[dict[str, Any], ...] = (
        {},
        {"partition": "iid", "clients": few_clients},
        {"partition": "iid", "clients": 1},
    )
    refusal = ""
    federation = None
    for partition in partitions:
        try:
            run = parse({**chosen, **partition, **given, "cache": cache})
            federation = federate(run.data, run.general.seed)
        except SettingError as error:
            refusal = refusal or str(error)
            continue
        settings = run.data
        refuse_untrainable(settings, federation)
        if federation.standardized_rows:
            notes.append(sentence_about(federation.standardized_rows))
        chosen = chosen | {key: partition[key] for key in partition if key not in chosen}
        break
    return Checked(
        data=data,
        notes=notes,
        model=model_line(run),
        settings=chosen,
        federation=federation,
        partitioned=settings,
        refusal=refusal,
    )


def print_notes(given: Mapping[str, Any], notes: Sequence[Remedy]) -> None:
    """Print what a user has to know, and below each note the checks with the settings that it names."""
    for note in notes:
        out.print(f"Note: {text_of(note)}.", style="yellow", markup=False, soft_wrap=True)
        print_other_checks(given, note)


def print_other_checks(given: Mapping[str, Any], remedy: Remedy) -> None:
    """Print the command that checks the data with each setting that a remedy or a note names.

    Args:
        given: the settings of the check that gave the remedy, by key. Those that are empty count as left out.
        remedy: or a note.
    """
    for option in options_of(remedy):
        settings = {key: value for key, value in given.items() if value not in ("", None)}
        settings[option.key] = option.value
        dataset = in_shell(settings.pop("dataset"))
        print(f"fedskew data check {dataset} {as_words(settings)}".rstrip())


def as_words(settings: Mapping[str, Any]) -> str:
    """Return settings as words of a command line that a shell does not change."""
    words = []
    for key, value in settings.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        words.append(f"--set {in_shell(f'{key}={text}')}")
    return " ".join(words)


def beyond_one(data: Dataset) -> bool:
    """Return whether images are floating-point numbers on another scale than 0..1."""
    is_image = len(data.shape) == 3
    for inputs in (data.train_inputs, data.test_inputs):
        if is_image and isinstance(inputs, np.ndarray) and inputs.dtype == np.float32:
            low, high = inputs.min(), inputs.max()
            if low < 0 or high > 1:
                return True
    return False
