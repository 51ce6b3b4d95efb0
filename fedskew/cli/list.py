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
        rows = [
            {"method": method.name, "what": method.what,
             "parts": "+".join((*method.variants, *method.serving)) or "fedavg",
             "uploads beside the model": method.reveals, "paper": method.paper}
            for method in (*METHODS.values(), *installed_methods())
        ]  # fmt: skip
    elif topic is Topic.settings:
        from server_app.settings import (
            defaults,
            explanations,
        )  # with torch, a second; so are the others

        meaning = explanations()
        rows = [
            {"key": key, "default": value, "meaning": meaning[key]}
            for key, value in defaults().items()
        ]
    elif topic is Topic.models:
        from client_app.models import MODELS

        rows = [
            {"model": name, "what": (build.__doc__ or "").splitlines()[0]}
            for name, build in MODELS.items()
        ]
    else:
        from fedskew.experiments.experiments import known_entries

        rows = [
            {"experiment": name, "what": entry.title}
            for name, entry in known_entries(experiments).items()
        ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    name, *others = rows[0]
    table = terminal_table(*named(name), *others)
    for row in rows:
        table.add_row(
            *(json.dumps(value) if key == "default" else str(value) for key, value in row.items())
        )
    console().print(table)
