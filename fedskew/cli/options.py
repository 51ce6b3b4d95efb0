"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of `fedskew list settings`."),
]
Results = Annotated[
    str | None,
    typer.Option("--results", metavar="FOLDER", help="The folder of the runs' folders."),
]
Jobs = Annotated[
    int, typer.Option("--jobs", metavar="N", min=0, help="Parallel runs (0 = choose).")
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]
ExperimentsFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Your own experiments (default: experiments.yaml)."),
]
RecordsFolder = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Kept records (default: benchmarks/papers)."),
]
