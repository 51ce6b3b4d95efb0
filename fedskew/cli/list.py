"""`fedskew list`: the available methods, settings, models or experiments."""

import json
from enum import StrEnum
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

from fedskew.cli.terminal import ExperimentsFile, console
from fedskew.formatting import named, terminal_table
from server_app.methods import GROUP, METHODS, Method


class Topic(StrEnum):
    """What can be listed."""

    methods = "methods"
    settings = "settings"
    models = "models"
    experiments = "experiments"


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


def list_topic(
    topic: Annotated[Topic, typer.Argument(help="What to list.")],
    experiments: ExperimentsFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List the available methods, settings, models or experiments."""
    rows: list[dict[str, Any]]
    if topic is Topic.methods:
        rows = method_rows()
    elif topic is Topic.settings:
        rows = setting_rows()
    elif topic is Topic.models:
        rows = model_rows()
    else:
        from fedskew.experiments.lookup import known_entries

        entries = known_entries(experiments)
        rows = [{"experiment": name, "what": entry.title} for name, entry in entries.items()]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    name, *others = rows[0]
    table = terminal_table(*named(name), *others)
    for row in rows:
        cells = []
        for key, value in row.items():
            # A default is shown as --set takes it: true and not True.
            cells.append(json.dumps(value) if key == "default" else str(value))
        table.add_row(*cells)
    console().print(table)


def method_rows() -> list[dict[str, Any]]:
    """Return a row per method, those of installed packages last."""
    rows = []
    for method in (*METHODS.values(), *installed_methods()):
        parts = (*method.variants, *method.serving)
        rows.append(
            {
                "method": method.name,
                "what": method.what,
                "parts": "+".join(parts) or "fedavg",
                "uploads beside the model": method.reveals,
                "paper": method.paper,
            }
        )
    return rows


def setting_rows() -> list[dict[str, Any]]:
    """Return a row per setting."""
    from server_app.settings import defaults, explanations  # with torch, which takes a second

    meanings = explanations()
    rows = []
    for key, value in defaults().items():
        rows.append({"key": key, "default": value, "meaning": meanings[key]})
    return rows


def model_rows() -> list[dict[str, Any]]:
    """Return a row per model, with the first line of its docstring."""
    from client_app.models import MODELS

    rows = []
    for name, build in MODELS.items():
        first_line = (build.__doc__ or "").splitlines()[0]
        rows.append({"model": name, "what": first_line})
    return rows
