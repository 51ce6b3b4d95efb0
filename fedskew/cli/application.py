"""The command line's subcommands, each imported on use, and the handling of errors."""

import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import version
from typing import Annotated

import click
import typer
from typer.core import TyperGroup

from fedskew.formatting import BAD_INPUT, FAILED, TYPER_SUGGESTS, complain
from site_agent.cli import DescribedCommand

COMMANDS = {
    "run": (
        "fedskew.cli.run:run",
        "Run experiments, or one run from settings, and print the results.",
    ),
    "list": (
        "fedskew.cli.list:list_topic",
        "List the available methods, settings, models or experiments.",
    ),
    "data": ("fedskew.cli.data:application", "Data sets and partitions."),
    "diagnose": (
        "fedskew.cli.diagnose:diagnose_source",
        "Name the skew of a federation, how certain it is, and the methods known to fail under it.",
    ),
    "select": (
        "fedskew.cli.run:select",
        "Find the best method for a federation, by three experiments on validation data.",
    ),
    "report": (
        "fedskew.cli.report:report",
        "Report the results of experiments and of other runs, with intervals and costs.",
    ),
    "keep": (
        "fedskew.cli.report:keep",
        "Keep the records of a suite's finished runs as small files without weights.",
    ),
    "federation": (
        "fedskew.cli.federation:application",
        "Commands for the coordinator of a federation between sites.",
    ),
    "export": (
        "fedskew.cli.export:export",
        "Write a run's deployed model as safetensors, with a model card.",
    ),
    "predict": (
        "fedskew.cli.export:predict",
        "Predict with an exported model; with known classes, also print the metrics.",
    ),
}
"""By name: where it is, in a module that may take seconds to import (torch), and the line of `fedskew --help`."""


FIRST_STEPS = (
    "First steps: `fedskew run demo` trains on data that come with FedSkew and reports the results. "
    "`fedskew data check PATH` checks your own data."
)


EXPERIMENTAL = (
    "Experimental: GPUs (device = cuda), tried on one H100 and one H200. Not tried: Ray clusters "
    "(run --ray-address) and macOS."
)


class Commands(TyperGroup):
    """Shows the commands by their lines, and imports the one that is called."""

    def resolve_command(
        self,
        context: click.Context,
        words: list[str],
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, _, rest = super().resolve_command(context, words)
        command = loaded(name) if name else None
        return name, command, rest


application = typer.Typer(
    cls=Commands,
    help="Federated learning on skewed data.",
    epilog=f"{FIRST_STEPS}\n\n{EXPERIMENTAL}",
    no_args_is_help=True,
    suggest_commands=TYPER_SUGGESTS,
    pretty_exceptions_enable=False,
)


def print_version(asked: bool) -> None:
    """Print name and version and end, where that is asked for."""
    if asked:
        print(f"fedskew {version('fedskew')}")
        raise typer.Exit


@application.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=print_version,
            is_eager=True,
            help="Print the version.",
        ),
    ] = False,
) -> None:
    """Federated learning on skewed data."""


for name, (_, line) in COMMANDS.items():
    application.command(name=name, help=line)(lambda: None)


@cache
def loaded(name: str) -> click.Command:
    """Return a command, ready to be called."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    command = getattr(import_module(module), attribute)
    if not isinstance(command, typer.Typer):
        function = command
        command = typer.Typer(add_completion=False)
        command.command()(function)
    for information in command.registered_commands:
        information.cls = DescribedCommand
    return typer.main.get_command(command)


def prepare(words: Sequence[str]) -> None:
    """Import what a command line calls. Of a missing package `run_command_line` says which."""
    if words and words[0] in COMMANDS:
        with suppress(ModuleNotFoundError):
            loaded(words[0])


EXTRA_OF = {"federation": "coordinator"}
"""The commands with an extra of their own."""


def run_command_line() -> int:
    """Run the command line and return the exit status, which is 0 only for complete success."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    try:
        # typer makes a KeyboardInterrupt a return value.
        # Its own name, however it was called: completion asks for a variable of that name.
        status = application(prog_name="fedskew", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except click.ClickException as error:  # a wrong option: the usage and one sentence
        error.show()
        return error.exit_code
    except IsADirectoryError as error:
        return complain(f"{error.filename}: is a folder where a file belongs", BAD_INPUT)
    except ModuleNotFoundError as error:
        from data.packages import explained

        # Of a module that is in no extra it says nothing: that is a fault of FedSkew's.
        sentence = explained(error, EXTRA_OF.get("".join(sys.argv[1:2]), ""))
        if not sentence:
            raise
        return complain(sentence, BAD_INPUT)
    except (RuntimeError, OSError, ValueError, LookupError) as error:
        from data import InputError  # whoever raises one has imported them
        from data.text import sentence as sentence_of

        status = BAD_INPUT if isinstance(error, InputError) else FAILED
        return complain(sentence_of(error), status)
