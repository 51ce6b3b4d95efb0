"""A typer command whose --help describes its arguments, for both command lines."""

from typing import Any

from typer.core import TyperArgument, TyperCommand
from typer.utils import get_params_from_function


class DescribedCommand(TyperCommand):
    """Keeps the help of arguments.

    flwr 1.42 requires typer below 0.21, and click 8.5 resets the help of that typer's arguments.
    """

    def __init__(self, name: str | None, **details: Any) -> None:
        super().__init__(name, **details)
        if self.callback is None:
            return
        declared = get_params_from_function(self.callback)
        for parameter in self.params:
            if isinstance(parameter, TyperArgument):
                parameter.help = declared[str(parameter.name)].default.help
