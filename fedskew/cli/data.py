"""`fedskew data`: list data sets, show and save partitions, check a user's own data."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from data import DataError, DataSettings, require
from data.partition_files import save as write_partition
from data.readers import cache
from data.readers.catalog import (
    ALIASES,
    DOMAINS_PREFIX,
    KNOWN,
    NAMED_KINDS,
    domain_names,
    is_own,
    labels_file,
    members,
)
from data.text import name_list
from fedskew.cli import completion
from fedskew.cli.run_selection import check_settings, checked_texts
from fedskew.cli.terminal import (
    BAD_INPUT,
    TYPER_SUGGESTS,
    MaxImagePixels,
    MaxUnpackedMiB,
    complain,
    console,
    fits,
)
from fedskew.experiments.entries import defaults
from fedskew.formatting import named, numbered, numeric, terminal_table
from fedskew.signals import at_once
from server_app.keys import read_texts

# What reads data imports torch, which takes seconds: the commands import it after their first checks.
if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from data import Dataset, Federation

application = typer.Typer(
    help="Data sets and partitions.",
    no_args_is_help=True,
    add_completion=False,
    suggest_commands=TYPER_SUGGESTS,
)
out = console()
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]
Settings = Annotated[
    list[str] | None,
    completion.set_option("A setting, as for `fedskew run`."),
]
SHOWN_CLASSES = 20
"""More classes than these do not fit a terminal: then each client's largest class stands for them."""


@application.command(name="list")
def list_data(
    data_root: Annotated[
        str, typer.Option(help="The setting data-root: the folder of the data sets' files.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List the data sets: present or missing, and how to get them."""
    rows = [*named_rows(data_root)]
    rows += alias_rows(rows)
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = terminal_table(*named("dataset", "classes", "input-shape", "there"), "what")
    for row in rows:
        there_or_not = Text("yes", "green") if row["there"] else Text("no", "yellow")
        table.add_row(
            row["dataset"],
            str(row["classes"]),
            row["input-shape"],
            there_or_not,
            row["what"],
        )
    out.print(table)
    out.print(
        "Beside these: npz:PATH, folder:PATH, csv:PATH, medmnist:NAME or medmnist:PATH, hf:NAME or hf:PATH "
        "(see `fedskew data check`) and domains:NAME,NAME,..."
    )


def named_rows(data_root: str) -> Iterator[dict[str, Any]]:
    """Yield a row per named data set, as `--json` prints it."""
    for name, known in KNOWN.items():
        row = {
            "dataset": name,
            "classes": len(known.class_names),
            "input-shape": "x".join(map(str, known.shape)),
        }
        yield row | status(name, data_root)


def alias_rows(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a row per name of several data sets, from the rows of these."""
    there = {row["dataset"]: row["there"] for row in rows}
    for alias, names in ALIASES.items():
        missing = [name for name in names if not there[name]]
        what = f"the domains {', '.join(names)}"
        if missing:
            what += f"; missing {', '.join(missing)}"
        yield {
            "dataset": alias,
            "classes": len(KNOWN[names[0]].class_names),
            "input-shape": "",
            "there": not missing,
            "what": what,
        }


def status(name: str, data_root: str) -> dict[str, Any]:
    """Return whether a data set is there, and where, or how to get it."""
    with at_once():
        from data.readers.layouts import office_class_folders
        from data.readers.named import files_of

    known = KNOWN[name]
    try:
        files = files_of(name, DataSettings(name, data_root))
    except DataError:
        by = known.downloaded_by
        way = f"download = true fetches it into data-root, through {by}" if by else known.how
        return {"there": False, "what": f"{way}; or {name}.npz in data-root"}
    if not files:
        return {"there": True, "what": "comes with scikit-learn"}
    if known.layout == "office" and files[0].suffix != ".npz":
        try:
            office_class_folders(files[0].parent, known.class_names)
        except DataError as error:
            return {"there": False, "what": str(error)}
    what = str(files[0])
    if len(files) > 1:
        what += f" and {len(files) - 1} more"
    return {"there": True, "what": what}


@application.command()
def show(
    settings: Settings = None,
    png: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the table as a picture.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the number of samples of each class at each client."""
    stated = checked_texts(settings)
    if png is not None:
        require(png.suffix.lower() == ".png", "--png", str(png), "must end in .png")
    with at_once():
        from data import federate
        from data.data_warnings import refuse_untrainable
        from fedskew.data_warnings import print_warnings
        from fedskew.diagnosis.planned import line_of, whose_partition
        from server_app.settings import parse

    chosen = parse(stated)
    federation = federate(chosen.data, chosen.general.seed)
    refuse_untrainable(chosen.data, federation)
    counts_KC = federation.counts_KC
    classes = federation.dataset.class_names
    if png is not None:
        draw_class_matrix(counts_KC, classes, federation.client_names).savefig(png)
    print_warnings(chosen.data, federation, console(stderr=as_json))
    if as_json:
        found = {"hash": federation.hash, "classes": classes, "counts": counts_KC.tolist()}
        print(json.dumps(found))
        return
    data = chosen.data
    title = (
        f"{data.dataset}, partition {data.partition}, seed {chosen.general.seed}: training samples"
    )
    table = matrix_table(federation, title)
    if not fits(table, out):
        table = matrix_table(federation, title, full_names=False)
    out.print(table)
    samples = f"{counts_KC.sum()} training and {len(federation.global_test)} test samples"
    out.print(f"{samples}; hash of data and partition {federation.hash}")
    if diagnosis := line_of(federation):
        out.print(f"{whose_partition(chosen.data)}: {diagnosis}", markup=False)


@application.command(name="save-partition")
def save(
    file: Annotated[
        Path, typer.Argument(help="The file to write; the setting partition-file reads it.")
    ],
    settings: Settings = None,
    table: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="CSV",
            help="Read it from a CSV with columns sample and client.",
        ),
    ] = None,
) -> None:
    """Save a partition to a file, for the setting partition-file."""
    stated = checked_texts(settings)
    if table is not None:
        require(table.is_file(), "--from", str(table), "there is no such file")
    with at_once():
        from data import federate, load
        from data.export import partition_by_table, save_partition
        from server_app.settings import parse

    chosen = parse(stated)
    if table is not None:
        partition = partition_by_table(table, load(chosen.data))
        write_partition(file, partition)
        clients = len(partition.train)
        samples = sum(map(len, partition.train))
        tests = len(partition.test)
    else:
        federation = federate(chosen.data, chosen.general.seed)
        save_partition(federation, file)
        clients = federation.clients
        samples = federation.counts_KC.sum()
        tests = len(federation.global_test)
    out.print(f"{file}: {clients} clients, {samples} training and {tests} test")


def matrix_table(federation: "Federation", title: str, full_names: bool = True) -> Table:
    """Return a row per client: its samples of each class, brighter where they are more of the client's own.

    Beyond SHOWN_CLASSES a row has the client's largest class in place of all. The headings are the classes' names, or
    without `full_names` numbers with a legend below.
    """
    counts_KC = federation.counts_KC
    names = federation.dataset.class_names
    few = len(names) <= SHOWN_CLASSES
    headings, legend = ["classes held", "largest class", "its share"], ""
    if few and full_names:
        headings = list(names)
    elif few:
        headings, legend = numbered(names)

    table = terminal_table(title=title)
    table.caption = f"Classes: {legend}" if legend else None
    digits = len(str(counts_KC.sum()))  # a cut name can be read, a cut number cannot
    for heading in ("client", *headings, "all"):
        table.add_column(heading, justify="right", no_wrap=True, min_width=digits)
    for client, counts_C in zip(federation.client_names, counts_KC, strict=True):
        samples = counts_C.sum()
        if few:
            cells = [Text(str(count), shade(count / samples)) for count in counts_C.tolist()]
        else:
            largest = int(counts_C.argmax())
            cells = [
                Text(str(np.count_nonzero(counts_C))),
                Text(names[largest]),
                Text(f"{counts_C[largest] / samples:.0%}"),
            ]
        table.add_row(client, *cells, str(samples))
    if few:
        totals = map(str, counts_KC.sum(axis=0))
        table.add_row("all", *totals, str(counts_KC.sum()), style="bold")
    return table


def shade(share: float) -> str:
    """Return the style of a cell."""
    if share >= 0.5:
        return "bold cyan"
    if share >= 0.2:
        return "cyan"
    return "dim" if share == 0 else ""


@application.command()
def check(
    path: Annotated[
        str,
        typer.Argument(
            help="An npz or CSV file, a folder of images, KIND:PATH, or several as domains:A,B."
        ),
    ],
    classes: Annotated[
        str, typer.Option(help="The setting classes; default: found in the data.")
    ] = "",
    input_shape: Annotated[
        str, typer.Option(help="The setting input-shape; default: found in the data.")
    ] = "",
    labels: Annotated[
        str,
        typer.Option(
            help="The setting labels: a CSV file with the labels of DICOM files, or a DICOM keyword."
        ),
    ] = "",
    max_image_pixels: MaxImagePixels = DataSettings.max_image_pixels,
    max_unpacked_mib: MaxUnpackedMiB = DataSettings.max_unpacked_mib,
    settings: Settings = None,
) -> None:
    """Check whether your data can be used, reading every image, and print the command that uses them.

    Where a setting would change the answer, also print the check with that setting.
    """
    stated = read_texts(settings or [], defaults())
    check_settings(stated, alone=False)  # without the data, from which `look_through` finds more
    given: dict[str, Any] = {
        "dataset": own_name(path),
        "classes": classes,
        "input-shape": input_shape,
        # The command that is printed works in every folder.
        "labels": str(Path(labels).expanduser().absolute()) if labels_file(labels) else labels,
    }
    # The command that is printed at the end states only limits that differ from the defaults.
    limits = {"max-image-pixels": max_image_pixels, "max-unpacked-mib": max_unpacked_mib}
    for key, value in limits.items():
        default = getattr(DataSettings, key.replace("-", "_"))
        if value != default:
            given[key] = value
    given |= stated
    with at_once():
        from data.errors import InputError
        from fedskew.cli.data_check import (
            as_words,
            look_through,
            print_notes,
            print_other_checks,
        )
        from fedskew.data_warnings import print_warnings
        from fedskew.diagnosis.planned import line_of, whose_partition

    with tempfile.TemporaryDirectory() as copies:
        if columns := table_of_columns(given):  # before a refusal, too: it may be about one of them
            out.print(columns)
        try:
            checked = look_through(given, copies)
        except InputError as error:
            complain(str(error), BAD_INPUT)
            print_other_checks(given, error.remedy)
            raise typer.Exit(BAD_INPUT) from error
        out.print(f"{path} will work.", style="green")
        print_notes(given, checked.notes)
        if checked.federation is not None:
            print_warnings(checked.partitioned, checked.federation, out)
        out.print(counts_table(checked.data))
        if checked.refusal:
            refusal = f"With the default partition it will not: {checked.refusal}"
            out.print(refusal, style="yellow", markup=False)
        if checked.federation is not None:
            diagnosis = line_of(checked.federation)
            if diagnosis:  # of a single client there is none
                whose = whose_partition(checked.partitioned)
                out.print(f"{whose}: {diagnosis}", markup=False)
        out.print(f"Model: {checked.model}")
        print(f"fedskew run {as_words(checked.settings)}")


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
            with at_once():
                from data.readers.user_data import kind_of_path

            kind = kind_of_path(file)
        return f"{kind}:{file}"
    if kind in NAMED_KINDS:  # the name of a data set that is downloaded
        return path
    raise DataError("there is no such file or folder", where=location)


@application.command(name="cache")
def cache_command(
    listed: Annotated[bool, typer.Option("--list", help="List the copies.")] = False,
    clear: Annotated[bool, typer.Option("--clear", help="Delete all copies.")] = False,
    folder: Annotated[
        str, typer.Option("--cache", help="The setting cache: the folder of the copies.")
    ] = "",
) -> None:
    """List or delete the cached copies of data sets, including your own images."""
    require(listed != clear, "--list", listed, "must be given, or --clear, one of the two")
    cache_path = cache.cache_folder(folder)
    sizes = cache.copies(cache_path)
    for path, size in sizes.items():
        print(f"{size / 2**20:9.1f} MiB  {path.name}")
    if clear:
        cache.clear(cache_path)
    mib = sum(sizes.values()) / 2**20
    deleted = ", deleted" if clear else ""
    print(f"{cache_path}: {len(sizes)} copies of {mib:.1f} MiB in all{deleted}")


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
    """Write each client of a partition as a site's folder with data.npz and site.toml, and a federation.toml."""
    stated = read_texts(settings or [], defaults())
    check_settings(stated, alone=False)
    if dataset in (*KNOWN, *ALIASES) or dataset.startswith(DOMAINS_PREFIX):
        name = dataset
    else:
        name = own_name(dataset)
    given = {**stated, "dataset": name}
    if sites:
        given["clients"] = sites
    check_settings(given)
    with at_once():
        from data import federate
        from data.export import write_sites
        from server_app.settings import parse

    chosen = parse(given)
    federation = federate(chosen.data, chosen.general.seed)
    (name_of_domain,) = domain_names((dataset,))
    folders = write_sites(federation, out_folder, name_of_domain)
    for folder, counts_C in zip(folders, federation.counts_KC, strict=True):
        classes = np.count_nonzero(counts_C)
        out.print(f"{folder}: {counts_C.sum()} training samples of {classes} classes")
    out.print(f"{out_folder / 'federation.toml'}: its empty keys must be filled in")


def table_of_columns(given: Mapping[str, Any]) -> Table | None:
    """Return a row per column of a CSV file; None for other data, and where the file itself is refused."""
    if not str(given["dataset"]).startswith("csv:"):
        return None
    with at_once():
        from data.readers.tables import columns_of
        from data.readers.user_data import path_of
        from server_app.keys import built

    stated = {key: value for key, value in given.items() if value not in ("", None)}
    settings = built(DataSettings, stated)
    try:
        columns = columns_of(path_of(settings.dataset, settings), settings)
    except DataError:
        return None  # which `look_through` says
    table = terminal_table("column", "role", "type", *numeric("range", "missing"))
    for column in columns:
        missing = Text(str(column.missing), "yellow" if column.missing else "")
        texts = [Text(text) for text in (column.name, column.role, column.type, column.range)]
        table.add_row(*texts, missing)
    return table


def counts_table(data: "Dataset") -> Table:
    """Return the samples of each class in each split."""
    splits = {"train": data.train_labels, "test": data.test_labels}
    if data.val_labels is not None:
        splits["val"] = data.val_labels
    counts = []
    for labels in splits.values():
        counts.append(np.bincount(labels, minlength=data.num_classes).tolist())

    table = terminal_table(*numeric("class", *splits))
    for name, *row in zip(data.class_names, *counts, strict=True):
        cells = [str(count) if count else Text("0", "yellow") for count in row]
        table.add_row(name, *cells)
    return table


LETTER_INCHES, LINE_INCHES = 0.075, 0.22
"""A letter's width and a line's height in the picture of the class matrix."""


def draw_class_matrix(
    counts_KC: NDArray[np.int64],
    classes: Sequence[str],
    clients: Sequence[str],
) -> "Figure":
    """Return a picture with a row per client and a column per class, the darker the more samples (by square root).

    A cell with room for it shows its number; classes beyond 40 and clients beyond 60 go without names.
    """
    from matplotlib.figure import Figure

    rows, columns = counts_KC.shape
    classes = classes if columns <= 40 else []
    clients = clients if rows <= 60 else []

    # In inches: one cell, then the margins for the clients' names and the classes' names.
    longest_in_column = max(map(len, [*classes, str(counts_KC.max())]))
    cell_width = LETTER_INCHES * longest_in_column + 0.1 if classes else 0.06
    cell_height = LINE_INCHES if clients else 0.08
    longest_client = max(map(len, clients), default=0)
    left = LETTER_INCHES * longest_client + 0.3
    top = (LINE_INCHES if classes else 0) + 0.3
    size = (cell_width * columns + left, cell_height * rows + top)

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    largest = max(counts_KC.max(), 1)
    strength_KC = np.sqrt(counts_KC / largest)
    axes.imshow(strength_KC, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.tick_params(
        length=0,
        labelsize=8,
        top=True,
        labeltop=True,
        bottom=False,
        labelbottom=False,
    )
    axes.set_xticks(range(len(classes)), classes)
    axes.set_yticks(range(len(clients)), clients)
    axes.spines[:].set_visible(False)
    if not classes or not clients:
        return figure
    for (row, column), count in np.ndenumerate(counts_KC):
        if count:
            ink = "white" if strength_KC[row, column] > 0.5 else "black"
            axes.text(column, row, str(count), color=ink, fontsize=8, ha="center", va="center")
    return figure
