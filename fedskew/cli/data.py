"""`fedskew data`: list data sets, show and save partitions, check a user's own data."""

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from data import DataError, DataSettings
from data.readers.catalog import (
    ALIASES,
    DOMAINS_PREFIX,
    KNOWN,
    is_own,
    labels_file,
    members,
)
from data.text import in_shell, name_list
from fedskew.cli.options import AsJson, Settings, check_settings, checked_texts
from fedskew.formatting import (
    BAD_INPUT,
    TYPER_SUGGESTS,
    complain,
    console,
    print_rows,
    terminal_table,
)

# What reads data imports torch, which takes seconds: the commands import it after their first checks.
if TYPE_CHECKING:
    from data import Federation

application = typer.Typer(
    help="Data sets and partitions.",
    no_args_is_help=True,
    add_completion=False,
    suggest_commands=TYPER_SUGGESTS,
)
out = console()
SHOWN_CLASSES = 20
"""Classes that fit a terminal; of more a client has the number that it holds."""


@application.command(name="list")
def list_data(
    data_root: Annotated[
        str, typer.Option(help="The setting data-root: the folder of the data sets' files.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List the data sets: present or missing, and how to get them."""
    from data.readers.named import files_of

    rows = []
    missing = set()
    for name, known in KNOWN.items():
        try:
            files = files_of(name, DataSettings(name, data_root))
            what = "comes with scikit-learn"
            if files:
                what = str(files[0])
            if len(files) > 1:
                what += f" and {len(files) - 1} more"
        except DataError:
            missing.add(name)
            way = known.how or "download = true fetches it into data-root, through torchvision"
            what = f"{way}; or {name}.npz in data-root"
        shape = "x".join(map(str, known.shape))
        rows.append((name, len(known.class_names), shape, name not in missing, what))
    for alias, names in ALIASES.items():
        what = f"the domains {', '.join(names)}"
        lacking = [name for name in names if name in missing]
        if lacking:
            what += f"; missing {', '.join(lacking)}"
        rows.append((alias, len(KNOWN[names[0]].class_names), "", not lacking, what))
    headings = ("dataset", "classes", "input-shape", "there", "what")
    print_rows([dict(zip(headings, row, strict=True)) for row in rows], as_json)
    if not as_json:
        out.print(
            "Beside these: npz:PATH, folder:PATH, csv:PATH, medmnist:NAME, hf:PATH "
            "(see `fedskew data check`) and domains:NAME,NAME,..."
        )


@application.command()
def show(
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Show the number of samples of each class at each client."""
    stated = checked_texts(settings)
    from data import federate
    from data.data_warnings import refuse_untrainable
    from fedskew.data_check import print_warnings
    from fedskew.diagnosis.planned import line_of, whose_partition
    from server_app.settings import parse

    chosen = parse(stated)
    federation = federate(chosen.data, chosen.general.seed)
    refuse_untrainable(chosen.data, federation)
    print_warnings(chosen.data, federation, console(stderr=as_json))
    if as_json:
        classes, counts = federation.dataset.class_names, federation.counts_KC.tolist()
        print(json.dumps({"hash": federation.hash, "classes": classes, "counts": counts}))
        return
    partition = f"partition {chosen.data.partition}, seed {chosen.general.seed}"
    title = f"{chosen.data.dataset}, {partition}: training samples"
    out.print(matrix_table(federation, title))
    tests = len(federation.global_test)
    samples = f"{federation.counts_KC.sum()} training and {tests} test samples"
    out.print(f"{samples}; hash of data and partition {federation.hash}")
    if diagnosis := line_of(federation):
        out.print(f"{whose_partition(chosen.data)}: {diagnosis}", markup=False)


@application.command(name="save-partition")
def save(
    file: Annotated[
        Path, typer.Argument(help="The file to write; the setting partition-file reads it.")
    ],
    settings: Settings = None,
) -> None:
    """Save a partition to a file, for the setting partition-file."""
    stated = checked_texts(settings)
    from data import federate
    from data.partition_files import save_partition
    from server_app.settings import parse

    chosen = parse(stated)
    federation = federate(chosen.data, chosen.general.seed)
    save_partition(federation.train_indices, file)
    samples, tests = federation.counts_KC.sum(), len(federation.global_test)
    out.print(f"{file}: {federation.clients} clients, {samples} training and {tests} test")


def matrix_table(federation: "Federation", title: str) -> Table:
    """Return a row per client: its samples of each class; of more than SHOWN_CLASSES the number of its classes."""
    counts_KC = federation.counts_KC
    names: tuple[str, ...] = federation.dataset.class_names
    shown_KC = counts_KC
    if len(names) > SHOWN_CLASSES:
        names = ("classes held",)
        shown_KC = np.count_nonzero(counts_KC, axis=1, keepdims=True)
    table = terminal_table(title=title)
    digits = len(str(counts_KC.sum()))  # a folded name can be read, a cut number cannot
    for heading in ("client", *names, "all"):
        table.add_column(Text(heading), justify="right", min_width=digits, overflow="fold")
    for client, shown, counts in zip(federation.client_names, shown_KC, counts_KC, strict=True):
        table.add_row(Text(client), *map(str, shown), str(counts.sum()))
    if shown_KC is counts_KC:
        totals = map(str, counts_KC.sum(axis=0))
        table.add_row("all", *totals, str(counts_KC.sum()), style="bold")
    return table


@application.command()
def check(
    path: Annotated[
        str,
        typer.Argument(
            help="An npz or CSV file, a folder of images, KIND:PATH, or several as domains:A,B."
        ),
    ],
    settings: Settings = None,
) -> None:
    """Check whether your data can be used, reading every image, and print the command that uses them.

    Where a setting would change the answer, also print the check with that setting.
    """
    stated = checked_texts(settings, alone=False)  # without the data, which the check reads
    labels = str(stated.get("labels", ""))
    if labels_file(labels):  # the command that is printed works in every folder
        stated["labels"] = str(Path(labels).expanduser().absolute())
    given = {"dataset": own_name(path), **stated}
    from data.errors import InputError
    from fedskew import data_check

    with tempfile.TemporaryDirectory() as copies:
        try:
            data_check.print_columns(given)  # before a refusal, too: it may be about one of them
            data_check.check(path, given, copies)
        except InputError as error:
            complain(str(error), BAD_INPUT)
            data_check.print_other_checks(given, error.remedy)
            raise typer.Exit(BAD_INPUT) from error


def own_name(path: str) -> str:
    """Return KIND:PATH with the absolute path, of a path with or without its kind; domains:A,B with each of them.

    Raises:
        DataError: there is no such file or folder.
    """
    if path.startswith(DOMAINS_PREFIX):
        names = [name if name in KNOWN else own_name(name) for name in members(path)]
        return f"{DOMAINS_PREFIX}{name_list(names)}"
    kind, location = "", path
    if is_own(path):
        kind, _, location = path.partition(":")
    file = Path(location).expanduser().absolute()
    if file.exists():
        if not kind:
            from data.readers.user_data import kind_of_path

            kind = kind_of_path(file)
        return f"{kind}:{file}"
    if kind == "medmnist":  # the name of a data set
        return path
    raise DataError("there is no such file or folder", where=location)


@application.command()
def export_sites(
    dataset: Annotated[
        str, typer.Argument(help="A data set's name, or your own npz or CSV file, or folder.")
    ],
    out_folder: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to make.")],
    sites: Annotated[
        int, typer.Option(help="Number of sites (0 = one per client of the partition).")
    ] = 0,
    settings: Settings = None,
) -> None:
    """Write each client of a partition as a site's folder with data.npz, and print the command for its federation."""
    stated = checked_texts(settings, alone=False)
    is_named = dataset in (*KNOWN, *ALIASES) or dataset.startswith(DOMAINS_PREFIX)
    given = {**stated, "dataset": dataset if is_named else own_name(dataset)}
    if sites:
        given["clients"] = sites
    check_settings(given)
    from data import federate
    from data.federation import write_sites
    from server_app.settings import parse

    chosen = parse(given)
    federation = federate(chosen.data, chosen.general.seed)
    folders = write_sites(federation, out_folder)
    for folder, counts_C in zip(folders, federation.counts_KC, strict=True):
        classes = np.count_nonzero(counts_C)
        out.print(f"{folder}: {counts_C.sum()} training samples of {classes} classes")
    data = federation.dataset
    inputs = {
        "--classes": name_list(data.class_names),
        "--input-shape": "x".join(map(str, data.shape)),
        "--columns": name_list(data.input_columns),
    }
    if not federation.standardized_rows:  # a table's columns are standardized over all sites
        inputs["--mean"] = ",".join(map(str, data.mean))
        inputs["--std"] = ",".join(map(str, data.std))
    words = [f"{option} {in_shell(value)}" for option, value in inputs.items() if value]
    print(f"fedskew federation new FOLDER --name NAME --address HOST:PORT {' '.join(words)}")
