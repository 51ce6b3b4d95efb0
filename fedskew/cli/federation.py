"""`fedskew federation`: the coordinator's commands, in the order of its help."""

import typer

from fedskew.cli import federation_members, federation_runs, federation_services
from fedskew.cli.terminal import TYPER_SUGGESTS

COMMANDS = (
    federation_members.new,
    federation_members.add,
    federation_members.agree,
    federation_members.renew,
    federation_services.up,
    federation_services.serve,
    federation_services.alive,
    federation_services.down,
    federation_runs.status,
    federation_runs.run,
    federation_runs.submit,
)

application = typer.Typer(
    help="Commands for the coordinator of a federation between sites.",
    add_completion=False,
    suggest_commands=TYPER_SUGGESTS,
)
for command in COMMANDS:
    application.command()(command)
