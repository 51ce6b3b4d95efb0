"""Named experiments: experiments.yaml, and the runs that an experiment stands for."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from data import SettingError
from server_app.settings import RunSettings, Scalar, parse

FILE = Path(__file__).resolve().parent.parent / "experiments.yaml"
KEYS = {"title", "settings", "methods", "seeds"}


@dataclass(frozen=True)
class Experiment:
    """Some runs that are read side by side."""

    name: str
    title: str
    settings: Mapping[str, Scalar]
    methods: tuple[Mapping[str, Scalar], ...]
    """Of each training the method, and settings of its own."""
    seeds: tuple[int, ...]

    def runs(self, overrides: Mapping[str, Scalar]) -> list[RunSettings]:
        """Return the settings of every run, seed by seed. Raises SettingError as `parse` does."""
        return [
            parse({"seed": seed, **self.settings, **method, **overrides})
            for seed in self.seeds
            for method in self.methods
        ]


def load_experiments(path: Path = FILE) -> dict[str, Experiment]:
    """Return the experiments of a file by their names. Raises SettingError for keys that mean nothing."""
    try:
        entries = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise SettingError("experiments", str(path), f"is not YAML: {' '.join(str(error).split())}") from error
    return {name: experiment(name, entry) for name, entry in entries.items()}


def experiment(name: str, entry: Mapping[str, Any]) -> Experiment:
    """Return one entry of the file as an experiment."""
    if unknown := sorted(entry.keys() - KEYS):
        raise SettingError(f"experiments.yaml: {name}", unknown[0], f"is no key; known are {', '.join(sorted(KEYS))}")
    return Experiment(
        name=name,
        title=entry["title"],
        settings=entry.get("settings", {}),
        methods=tuple(each if isinstance(each, Mapping) else {"method": each} for each in entry["methods"]),
        seeds=tuple(entry.get("seeds", (0,))),
    )


def find(name: str) -> Experiment:
    """Return the experiment of that name. Raises SettingError with the nearest name when there is none."""
    known = load_experiments()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        raise SettingError(
            "experiment",
            name,
            f"is not in experiments.yaml; {'did you mean ' + near[0] if near else 'known are ' + ', '.join(known)}",
        )
    return known[name]
