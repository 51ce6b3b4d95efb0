"""`fedskew data check`: a summary of a user's own data, and a command that uses them."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from data import Dataset, DataSettings, Federation, SettingError, federate, load
from data.data_warnings import refuse_untrainable
from data.readers.user_data import look
from server_app.settings import built, parse


@dataclass(frozen=True)
class Checked:
    """Data that can be trained on."""

    data: Dataset
    notes: list[str]
    """What a user has to know, a sentence each."""
    stated: dict[str, Any]
    """The settings of a run on them, by key."""
    federation: Federation | None
    partitioned: DataSettings
    """The settings that deal out the federation."""
    refusal: str
    """Why the default partition does not fit; empty where it does."""


def look_through(stated: Mapping[str, Any], cache: str) -> Checked:
    """Read all of one's own data by the settings `stated`, and find those that are left out.

    Raises:
        DataError: data that cannot be trained on, said in one sentence with what settles it.
        SettingError: a setting that is wrong, or changes nothing here.
    """
    kept = {key: value for key, value in stated.items() if value not in ("", None)}
    guess = look(str(kept["dataset"]), built(DataSettings, kept))
    chosen: dict[str, Any] = {"dataset": kept["dataset"]}
    for key, value in {**guess.settings, **kept}.items():
        chosen[key] = type(getattr(DataSettings, key.replace("-", "_"), value))(value)
    settings = parse({**chosen, "cache": cache}).data
    data = load(settings)
    notes = list(guess.notes)
    if beyond_one(data):
        notes.append("images of floating-point numbers are taken as 0..1, and some are outside")
    refusal, federation = "", None
    samples = len(data.train_labels)
    ways: tuple[dict[str, Any], ...] = (
        {},
        {"partition": "iid", "clients": min(10, max(2, samples // 10))},
    )
    for way in (*ways, {"partition": "iid", "clients": 1}):
        try:
            run = parse({**chosen, **way, **kept, "cache": cache})
            federation = federate(run.data, run.general.seed)
            settings = run.data
        except SettingError as error:
            refusal = refusal or str(error)
            continue
        chosen |= {key: value for key, value in way.items() if key not in chosen}
        break
    if federation is not None:
        refuse_untrainable(settings, federation)
    stated_here = {"dataset": chosen.pop("dataset"), **chosen}
    return Checked(data, notes, stated_here, federation, settings, refusal)


def as_words(stated: Mapping[str, Any]) -> str:
    """Return settings as a shell takes them."""
    texts = [
        f"{key}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in stated.items()
    ]
    return " ".join(
        "--set " + (shlex.quote(text) if "'" in text else f"'{text}'") for text in texts
    )


def beyond_one(data: Dataset) -> bool:
    """Return whether images are floating-point numbers on another scale than 0..1."""
    is_image = len(data.shape) == 3
    for inputs in (data.train_inputs, data.test_inputs):
        if is_image and isinstance(inputs, np.ndarray) and inputs.dtype == np.float32:
            low, high = inputs.min(), inputs.max()
            if low < 0 or high > 1:
                return True
    return False
