"""`fedskew federation`: the coordinator's commands, in the order of its help."""

import typer

from fedskew.cli import federation_members, federation_runs, federation_services
from fedskew.cli.terminal import TYPER_SUGGESTS

COMMANDS = (
    federation_members.new,
    federation_members.add,
    federation_members.remove,
    federation_members.rekey,
    federation_members.rename,
    federation_members.update,
    federation_members.coordinator_key,
    federation_members.renew,
    federation_services.up,
    federation_services.serve,
    federation_services.alive,
    federation_services.register,
    federation_runs.status,
    federation_runs.sign,
    federation_runs.run,
    federation_runs.runs,
    federation_runs.stop,
    federation_runs.follow,
    federation_runs.submit,
    federation_services.backup,
    federation_services.restore,
    federation_services.down,
)

application = typer.Typer(
    help="Commands for the coordinator of a federation between sites.",
    add_completion=False,
    suggest_commands=TYPER_SUGGESTS,
)
for command in COMMANDS:
    application.command()(command)
