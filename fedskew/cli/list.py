"""`fedskew list`: the available methods, settings, models or experiments."""

from enum import StrEnum
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

from fedskew.cli.options import AsJson, ExperimentsFile
from fedskew.experiments import known_entries
from fedskew.formatting import print_rows
from server_app.methods import GROUP, METHODS, Method


class Topic(StrEnum):
    """What can be listed."""

    methods = "methods"
    settings = "settings"
    models = "models"
    experiments = "experiments"


def list_topic(
    topic: Annotated[Topic, typer.Argument(help="What to list.")],
    experiments: ExperimentsFile = None,
    as_json: AsJson = False,
) -> None:
    """List the available methods, settings, models or experiments."""
    match topic:
        case Topic.methods:
            rows = method_rows()
        case Topic.settings:
            rows = setting_rows()
        case Topic.models:
            rows = model_rows()
        case Topic.experiments:
            entries = known_entries(experiments)
            rows = [{"experiment": name, "what": entry.title} for name, entry in entries.items()]
    print_rows(rows, as_json)


def method_rows() -> list[dict[str, Any]]:
    """Return a row per method, those of installed packages last."""
    return [
        {
            "method": method.name,
            "what": method.what,
            "parts": "+".join((*method.variants, *method.serving)) or "fedavg",
            "uploads beside the model": method.reveals,
            "paper": method.paper,
        }
        for method in (*METHODS.values(), *installed_methods())
    ]


def installed_methods() -> list[Method]:
    """Return what installed packages bring; one that breaks the contract with the reason for what it does."""
    if not entry_points(group=GROUP):
        return []
    from data import SettingError
    from server_app.plugins import check_new_methods, find, installed  # with torch

    methods = []
    for name in installed():
        try:
            check_new_methods(name)
            methods.append(find(name) or Method(name, "", "", ""))
        except SettingError as error:
            methods.append(Method(name, f"refused: {error.rule}", "-", "-"))
    return methods


def setting_rows() -> list[dict[str, Any]]:
    """Return a row per setting."""
    from server_app.settings import defaults, explanations  # with torch, which takes a second

    meanings = explanations()
    return [
        {"key": key, "default": value, "meaning": meanings[key]}
        for key, value in defaults().items()
    ]


def model_rows() -> list[dict[str, Any]]:
    """Return a row per model, with the first line of its docstring."""
    from client_app.models import MODELS

    return [
        {"model": name, "what": (build.__doc__ or "").splitlines()[0]}
        for name, build in MODELS.items()
    ]
