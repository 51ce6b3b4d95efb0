"""The sentences of bad input that users see: one table holds them word for word, other tests look at the fields."""

import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from data import DataError, InputError, SettingError, load
from data.agreement import read_agreement
from data.errors import NO_VALUE
from data.partition_files import read as read_partition
from data.settings import DataSettings
from fedskew.diagnosis.table import read_counts
from fedskew.experiments import entries_in
from fedskew.federation.folder import FederationFolder
from server_app.settings import parse, parse_texts
from site_agent.config import read_link, read_site
from tests.site_files import agreed, site_entries, site_folders, write

TABLE = Path(__file__).with_name("error_sentences.yaml")
FOLDER = "FOLDER"
"""What the table writes for the folder of a test."""
COORDINATOR = {"address": "fl.example.org:9092", "superlink-port": 9093}


def settings(given: Mapping[str, Any], folder: Path) -> None:
    parse({"results": str(folder), **given})


def command_line(given: list[str], folder: Path) -> None:
    parse_texts(given)


def experiments(given: str, folder: Path) -> None:
    file = folder / "experiments.yaml"
    file.write_text(given)
    entries_in(file)


def federation_toml(given: Mapping[str, Any], folder: Path) -> None:
    entries = {key.replace("-", "_"): value for key, value in given.items()}
    read_agreement(write(folder / "federation.toml", agreed(**entries)))


def site_toml(given: Mapping[str, Any], folder: Path) -> None:
    site_folders(folder)
    file = write(folder / "north/site.toml", site_entries(**given))
    read_site(file)
    read_link(file)


def coordinator_toml(given: Mapping[str, Any], folder: Path) -> None:
    write(folder / "coordinator.toml", {**COORDINATOR, **given})
    _ = FederationFolder(folder).coordinator


def counts(given: str, folder: Path) -> None:
    file = folder / "counts.csv"
    file.write_text(given)
    read_counts(file)


def table_of_numbers(given: Mapping[str, str], folder: Path) -> None:
    file = folder / "table.csv"
    file.write_text(given["text"])
    others = {key: value for key, value in given.items() if key != "text"}
    stated = {"classes": "a,b", "input_shape": "1", **others}
    load(DataSettings(dataset=f"csv:{file}", cache=str(folder), **stated))


def partition_file(given: object, folder: Path) -> None:
    file = folder / "partition.json"
    file.write_text(json.dumps(given))
    read_partition(str(file))


def arrays(given: Mapping[str, list[float]], folder: Path) -> None:
    labels = {"train_labels": [0, 1, 0], "test_labels": [0, 1, 0], **given}
    images = {f"{key}_images": np.zeros((3, 2, 2), np.uint8) for key in ("train", "test")}
    np.savez(folder / "own.npz", **images, **{key: np.array(row) for key, row in labels.items()})
    stated = {"classes": "2", "input_shape": "1x2x2", "cache": str(folder)}
    load(DataSettings(dataset=f"npz:{folder / 'own.npz'}", **stated))


FAMILIES: Mapping[str, tuple[Callable[[Any, Path], None], type[InputError]]] = {
    "settings": (settings, SettingError),
    "command line": (command_line, SettingError),
    "experiments": (experiments, SettingError),
    "federation.toml": (federation_toml, DataError),
    "site.toml": (site_toml, DataError),
    "coordinator.toml": (coordinator_toml, DataError),
    "counts": (counts, DataError),
    "table": (table_of_numbers, DataError),
    "partition file": (partition_file, DataError),
    "npz": (arrays, DataError),
}
"""By family, what reads a case's input, and the class of its errors."""
CASES: Mapping[str, list[dict[str, Any]]] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))


def cases() -> Iterator[Any]:
    for family, rows in CASES.items():
        for number, row in enumerate(rows):
            yield pytest.param(family, row["given"], row["says"], id=f"{family} {number}")


def refusal(family: str, given: Any, folder: Path) -> InputError:
    """Return the error that a case's input raises."""
    read, kind = FAMILIES[family]
    with pytest.raises(kind) as caught:
        read(given, folder)
    return caught.value


@pytest.mark.parametrize(("family", "given", "says"), list(cases()))
def test_a_user_sees_this_sentence(family: str, given: Any, says: str, tmp_path: Path) -> None:
    error = refusal(family, given, tmp_path)
    assert str(error).replace(str(tmp_path), FOLDER) == says
    assert "\n" not in says
    assert error.where or error.key, "an error names the file or the key"


@pytest.mark.parametrize(
    ("family", "given"),
    [
        ("settings", {"alpha": 0.1}),
        ("command line", ["rounds=2"]),
        ("experiments", "one: {title: a, methods: [fedavg]}"),
        ("federation.toml", {"min-sites": 2}),
        ("coordinator.toml", {"largest-message-mib": 1}),
        ("counts", "site,a,b\nx,1,2\ny,3,4\n"),
        ("npz", {}),
    ],
)
def test_good_input_is_not_refused(family: str, given: Any, tmp_path: Path) -> None:
    FAMILIES[family][0](given, tmp_path)


def test_an_error_survives_a_process_and_a_place_with_its_fields() -> None:
    """Workers send errors as pickles, and files of experiments say where one was found."""
    error = SettingError("alpha", -1.0, "must be greater than 0", where="a", remedy="try 0.1")
    found = pickle.loads(pickle.dumps(error)).within("b.yaml")
    assert type(found) is SettingError
    assert (found.where, found.key, found.value) == ("b.yaml: a", "alpha", -1.0)
    assert str(found) == "b.yaml: a: alpha = -1.0: must be greater than 0: try 0.1"
    missing = pickle.loads(pickle.dumps(DataError("is missing", where="c", key="name")))
    assert missing.value is NO_VALUE and str(missing) == "c: name is missing"
