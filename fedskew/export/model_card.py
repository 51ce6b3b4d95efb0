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
    **of_run: object,
) -> str:
    """Return the card as Markdown.

    Args:
        about: of the exported model.
        origin: the run's settings.json.
        models: the numbers of the exported round, by model.
        sites: the names of the sites that have a file of what they keep.
        of_run: `finished`, and `at_sites`, whether each site keeps its part elsewhere.
    """
    names = about.method.split("+")
    data = data_names(origin)
    samples = origin.get("samples")
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown
    )
    templates.filters |= {"percent": percent, "text": escaped, "shell": shlex.quote}
    template = templates.get_template("model_card.md")

    # Settings that can change numbers, without the paths of a machine.
    settings = {**origin["settings"], "dataset": ", ".join(data)}
    settings["partition-file"] = Path(settings["partition-file"]).name
    for key in WITHOUT_EFFECT_ON_NUMBERS:
        settings.pop(key, None)

    front = front_matter(about, models, data, names)
    return template.render(
        front=yaml.safe_dump(front, sort_keys=False, allow_unicode=True).strip(),
        about=about,
        origin=origin,
        models=models,
        classes=about.class_names,
        data=data,
        methods=[find(name) for name in names],
        rows={name: row_name(compose(about.method), name) for name in [about.model, *models]},
        samples=samples,
        by_class=[sum(counts_K) for counts_K in zip(*samples["train"], strict=True)]
        if samples
        else [],
        settings=settings,
        shown=SHOWN,
        sites=sites,
        vectors=len(about.shape) == 1,
        **of_run,
    )


def data_names(origin: Mapping[str, Any]) -> list[str]:
    """Return the names of the data sets: of the user's own data the file's name, as its path is private.

    Between sites it is the federation's name.
    """
    agreement = origin.get("agreement")
    if agreement:
        return [f"sites-{agreement['name']}"]
    names = members(origin["settings"]["dataset"])
    return [Path(name.partition(":")[2]).stem if is_own(name) else name for name in names]


def front_matter(
    about: Description,
    models: Mapping[str, ModelNumbers],
    data: Sequence[str],
    names: Sequence[str],
) -> dict[str, Any]:
    """Return the card's YAML block, in the keys that model hubs read."""
    task = "tabular-classification" if len(about.shape) == 1 else "image-classification"
    numbers = models.get(about.model, ModelNumbers())
    metrics = []
    for key, metric in HUGGING_FACE.items():
        if not math.isnan(numbers[key]):
            value = round(numbers[key], 4)
            metrics.append({"type": metric, "value": value, "name": SHOWN[key]})
    of_data = {"type": "-".join(data), "name": ", ".join(data), "split": "test"}
    result = {"task": {"type": task}, "dataset": of_data, "metrics": metrics}
    return {
        "library_name": "fedskew",
        "pipeline_tag": task,
        "tags": ["federated-learning", "flower", *names],
        "datasets": list(data),
        "metrics": list(HUGGING_FACE.values()),
        "model-index": [{"name": about.run, "results": [result] if metrics else []}],
    }
