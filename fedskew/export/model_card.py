"""The README.md of an exported model, in the usual form of a model card."""

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from data.readers.catalog import is_own, members
from fedskew.export.model_folder import Description
from fedskew.formatting import escaped, percent
from server_app.composition import compose, row_name
from server_app.plugins import find
from server_app.record import ModelNumbers
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS

SHOWN = {"balanced-accuracy": "balanced accuracy", "accuracy": "accuracy", "macro-f1": "macro-F1",
         "calibration-error": "calibration error"}  # fmt: skip
"""The numbers of the card's table, by their key in a record."""
HUGGING_FACE = {"balanced-accuracy": "balanced_accuracy", "accuracy": "accuracy", "macro-f1": "f1"}
"""What the front matter calls them."""


def model_card(
    about: Description,
    origin: Mapping[str, Any],
    models: Mapping[str, ModelNumbers],
    sites: Sequence[str],
    finished: bool,
    at_sites: bool,
    ended: str = "",
) -> str:
    """Return the card as Markdown.

    Args:
        about: of the exported model.
        origin: the run's settings.json.
        models: the numbers of the exported round, by model.
        sites: the names of the sites; empty for a simulation.
        finished: whether the run has ended.
        at_sites: whether each site keeps its part of the model.
        ended: why the run ended early, or "".
    """
    settings = origin["settings"]
    names = settings["method"].split("+")
    data = data_names(origin)
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown
    )
    templates.filters |= {"percent": percent, "text": escaped, "shell": shlex.quote}
    front = front_matter(about, data, names, models)
    samples = origin.get("samples")
    by_class = []
    if samples:
        by_class = [sum(counts_K) for counts_K in zip(*samples["train"], strict=True)]
    return templates.get_template("model_card.md").render(
        front=yaml.safe_dump(front, sort_keys=False, allow_unicode=True).strip(),
        about=about,
        classes=about.class_names,
        data=data,
        ended=ended,
        finished=finished,
        methods=[find(name) for name in names],
        models=models,
        row=row(settings["method"], about.model),
        rows={name: row(settings["method"], name) for name in models},
        rounds=settings["rounds"],
        samples=samples,
        by_class=by_class,
        settings=shown_settings(origin),
        shown=SHOWN,
        sites=sites,
        at_sites=at_sites,
        origin=origin,
        vectors=len(about.shape) == 1,
    )


def row(method: str, deployed: str) -> str:
    """Return what a deployed model is called in tables."""
    return row_name(compose(method), deployed)


def data_names(origin: Mapping[str, Any]) -> list[str]:
    """Return the names of the data sets: of the user's own data the file's name, as its path is private.

    Between sites it is the federation's name.
    """
    agreement = origin.get("agreement")
    if agreement:
        return [f"sites-{agreement['name']}"]
    names = []
    for name in members(origin["settings"]["dataset"]):
        path = name.partition(":")[2]
        names.append(Path(path).stem if is_own(name) else name)
    return names


def shown_settings(origin: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that can change numbers, without the paths of a machine."""
    settings = origin["settings"]
    shown = dict(settings)
    for key in WITHOUT_EFFECT_ON_NUMBERS:
        shown.pop(key, None)
    shown["dataset"] = ", ".join(data_names(origin))
    shown["partition-file"] = Path(settings.get("partition-file", "")).name
    return shown


def front_matter(
    about: Description,
    data: Sequence[str],
    names: Sequence[str],
    models: Mapping[str, ModelNumbers],
) -> dict[str, Any]:
    """Return the card's YAML block, in the keys that model hubs read."""
    vectors = len(about.shape) == 1
    task = "tabular-classification" if vectors else "image-classification"
    numbers = models.get(about.model, ModelNumbers())
    results = []
    for key, metric in HUGGING_FACE.items():
        value = numbers[key]
        if not math.isnan(value):
            results.append({"type": metric, "value": round(value, 4), "name": SHOWN[key]})
    of_data = {"type": "-".join(data), "name": ", ".join(data), "split": "test"}
    result = {"task": {"type": task}, "dataset": of_data, "metrics": results}
    return {
        "library_name": "fedskew",
        "pipeline_tag": task,
        "tags": ["federated-learning", "flower", *names],
        "datasets": list(data),
        "metrics": list(HUGGING_FACE.values()),
        "model-index": [{"name": about.run, "results": [result] if results else []}],
    }
