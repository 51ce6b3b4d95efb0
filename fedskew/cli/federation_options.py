"""What several commands of `fedskew federation` ask for: the folder, and the key that signs runs."""

from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[
    Path, typer.Argument(help="The federation's folder at its coordinator.", show_default=False)
]
CoordinatorKey = Annotated[
    Path | None,
    typer.Option(
        "--coordinator-key",
        help="File of the key that signs runs.",
        show_default="FOLDER/coordinator.key",
    ),
]
