"""The command line: its subcommands, and what becomes of an error."""

import logging

import click
import typer

from data import DataError, SettingError
from fedskew.cli.data import application as data_application
from fedskew.cli.export import export, predict
from fedskew.cli.federation import application as federation_application
from fedskew.cli.list import list_topic
from fedskew.cli.report import report
from fedskew.cli.run import run
from fedskew.cli.terminal import BAD_INPUT, FAILED, complain

application = typer.Typer(
    help="Federated learning on skewed data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
application.command()(run)
application.command(name="list")(list_topic)
application.add_typer(data_application, name="data")
application.command()(report)
application.add_typer(federation_application, name="federation")
application.command()(export)
application.command()(predict)


def run_command_line() -> int:
    """Run the command line and return the exit status, which is 0 only for complete success."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    try:
        status = application(standalone_mode=False)  # typer makes a return value of a KeyboardInterrupt
        return status if isinstance(status, int) else 0
    except click.ClickException as error:  # a wrong option: the usage and one sentence
        error.show()
        return error.exit_code
    except (SettingError, DataError) as error:
        return complain(str(error), BAD_INPUT)
    except (RuntimeError, OSError, ValueError, LookupError) as error:
        return complain(f"{type(error).__name__}: {error}", FAILED)
