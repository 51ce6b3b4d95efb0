"""docs/reference/run-files.md names exactly the keys that a run writes into its folder."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import FinishedRun
from sklearn.datasets import load_digits

from client_app.tensor_files import read

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "run-files.md"
SECTIONS = {
    "settings.json": "settings.json",
    "rounds.jsonl": "rounds.jsonl",
    "summary.json": "summary.json",
    "checkpoint.safetensors": "checkpoint.safetensors",
    "test-predictions.safetensors": "test-predictions.safetensors",
    "memory": "Memory of clients",
    "numbers": "Numbers of a model",
}
"""By file, or by an object that stands in several of them: the page's section with its keys."""

NAMES = {
    ("settings.json", "settings"): "KEY",
    ("rounds.jsonl", "failures"): "CLIENT",
    ("rounds.jsonl", "models"): "MODEL",
    ("rounds.jsonl", "method-numbers"): "NAME",
    ("summary.json", "rows"): "MODEL",
    ("summary.json", "models"): "MODEL",
    ("summary.json", "models.MODEL"): "SELECTION",
    ("checkpoint.safetensors", "fedskew.clients"): "CLIENT",
}
"""Objects whose keys are names: the page's word for them."""

OBJECTS = {
    ("rounds.jsonl", "models.MODEL"): "numbers",
    ("summary.json", "models.MODEL.SELECTION"): "numbers",
    ("numbers", "validation"): "numbers",
}
"""Objects that have a section of their own."""

SHOT_GROUP = re.compile(r"^(many|medium|few)(?=-recall$)|(?<=-)(many|medium|few)$")
BY_CLIENT = re.compile(r"^client-[a-z-]+")

NOT_RUN_HERE = {
    "settings.json": {
        "samples.client-test[]",  # domains
        "samples.tested[]",  # data with subjects
        "samples.independent[]",
        "samples.client-independent",
        "samples.client-independent[]",
        "standardization.rows",  # a table
        "standardization.columns[].column",
        "standardization.columns[].mean",
        "standardization.columns[].std",
        "input-columns[]",
        "medians.COLUMN",
        "agreement.name",  # between sites
        "agreement.sha256",
        "agreement.sites[]",
        "agreement.samples.SITE",
        "weights-sha256",  # a backbone's file
        "method's-files.METHOD",  # a method in a file
        "earlier-versions[]",  # other code
    },
    "rounds.jsonl": {
        "workers[].gpu",  # on a GPU
        "failures.CLIENT",  # replies that are refused
        "method-numbers",  # a method of one's own
        "method-numbers.NAME.mean",
        "method-numbers.NAME.values[]",
    },
}
"""Keys that the runs below do not write; the page names the setting or the data that do."""

Found = set[tuple[str, str]]


def keys_of(section: str, value: Any) -> Found:
    """Return (section, key) of every value in a JSON object, in the page's words."""
    found: Found = set()
    for name, path in paths_of(section, value):
        if name in ("numbers", "rounds.jsonl"):
            path = SHOT_GROUP.sub("GROUP", BY_CLIENT.sub("client-NAME", path))
        found.add((name, path))
    return found


def paths_of(section: str, value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield (section, path) of every value in a JSON object; an object with a section of its own goes on there."""
    if path:
        yield section, path
    if (section, path) in OBJECTS:
        numbers = dict(value)
        if "round" in numbers:  # which round a selection of the summary means
            yield section, f"{path}.round"
            del numbers["round"]
        yield from paths_of(OBJECTS[section, path], numbers)
    elif isinstance(value, dict):
        name = NAMES.get((section, path))
        for key, below in value.items():
            inner = f"{path}.{name or key}" if path else name or key
            yield from paths_of(section, below, inner)
    elif isinstance(value, list):
        for below in value:
            yield from paths_of(section, below, f"{path}[]")


def keys_of_folder(run: FinishedRun) -> Found:
    """Return the keys in all files of a run's folder."""
    folder = run.folder.path
    found: Found = set()
    for name in ("settings.json", "summary.json"):
        found |= keys_of(name, json.loads((folder / name).read_text()))
    for line in (folder / "rounds.jsonl").read_text().splitlines():
        found |= keys_of("rounds.jsonl", json.loads(line))
    for file in folder.rglob("*.safetensors"):
        found |= keys_of(section_of(file), read_metadata(file))
    return found


def read_metadata(file: Path) -> dict[str, Any]:
    """Return a tensor file's metadata, what FedSkew keeps there as JSON as an object."""
    _, text = read(file)
    metadata: dict[str, Any] = {**text, "checksum": ""}  # `read` checks it and leaves it out
    if "fedskew" in text:
        metadata["fedskew"] = json.loads(text["fedskew"])
    return metadata


def section_of(file: Path) -> str:
    """Return the section of the page that a tensor file belongs to."""
    if file.parent.parent.name == "memory":
        return "memory"
    if file.name == "test-predictions.safetensors":
        return file.name
    assert re.fullmatch(r"checkpoint|previous", file.stem), file
    return "checkpoint.safetensors"


def rows_of(section: str) -> dict[str, str]:
    """Return the keys of a section's table, each with the page's last column: which runs write it."""
    text = PAGE.read_text()
    _, _, rest = text.partition(f"\n## {section}\n")
    part, _, _ = rest.partition("\n## ")
    rows = re.findall(r"^\| `([^`]+)` \|.*\| ([^|]+) \|$", part, re.MULTILINE)
    keys = dict(rows)
    assert keys and len(keys) == len(rows), section
    return keys


@pytest.fixture
def two_classes(tmp_path: Path) -> str:
    """Return scikit-learn's digits 0 and 1, as the setting names the data set."""
    digits = load_digits()
    images = (digits.images * 15).astype(np.uint8)[digits.target < 2]
    labels = digits.target[digits.target < 2]
    sides = {"train": slice(None, 240), "test": slice(240, None)}
    arrays = {f"{side}_images": images[part] for side, part in sides.items()}
    arrays |= {f"{side}_labels": labels[part] for side, part in sides.items()}
    np.savez(tmp_path / "two.npz", **arrays)
    return f"npz:{tmp_path}/two.npz"


def test_the_page_names_the_keys_that_runs_write(
    train: Callable[..., FinishedRun], two_classes: str
) -> None:
    tail = {"imbalance_factor": 10, "train_images": 0, "holdout_per_class": 3, "rounds": 1}
    validated = {"validation_fraction": 0.3, "rounds": 2}
    own_files = {"input_shape": "1x8x8", "rounds": 1}
    runs = [
        train("plain"),
        train("validated", **validated, learning_rate=5.0, finetune_epochs=1),
        train("creff", method="creff", creff__compare_features=True, **tail),
        train("creff-code", method="creff-code", rounds=1),
        train("ratio-loss", method="ratio-loss", rounds=1),
        train("head", method="fed-lda", rounds=0),
        train("vectorized", clients_per_pass=2, rounds=1),
        train("scaffold", method="scaffold", rounds=1),
        train("two-classes", dataset=two_classes, classes="2", **own_files),
    ]
    folders = [keys_of_folder(run) for run in runs]
    found = set[tuple[str, str]]().union(*folders)

    for section, heading in SECTIONS.items():
        rows = rows_of(heading)
        written = {key for name, key in found if name == section}
        entries = {key for key in written if not is_parent(key, written)}
        assert entries <= rows.keys(), f"{heading}: not on the page"
        allowed = NOT_RUN_HERE.get(section, set())
        assert rows.keys() - written == allowed, f"{heading}: on the page, not in a file"
        always = {key for key, when in rows.items() if when == "always"}
        for run, keys in zip(runs, folders, strict=True):
            of_run = {key for name, key in keys if name == section}
            assert not of_run or always <= of_run, f"{heading}: not in {run.folder.path}"


def is_parent(key: str, keys: set[str]) -> bool:
    """Return whether a key is an object or a list whose entries are among the keys."""
    return any(other.startswith((f"{key}.", f"{key}[]")) for other in keys)
