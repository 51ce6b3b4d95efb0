"""Options that several commands have, and the runs that they select: experiments, or one run from settings."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from data import DataSettings, SettingError, require, resolve
from data.readers.catalog import is_own, members
from data.resolve import require_there
from fedskew.experiments import Experiment, Row, Suite, find_all, papers_suite
from fedskew.experiments.entries import defaults, naming
from server_app.keys import built, no_such, read_texts, typed
from server_app.methods import GROUP, METHODS, no_method
from server_app.methods import Setting as Scalar

if TYPE_CHECKING:
    from fedskew.experiments.plan import Cell, TunedValues


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
    typer.Option(
        metavar="FILE",
        help="Your own file of experiments, whose entries go before the shipped ones.",
    ),
]
RecordsFolder = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Kept records (default: benchmarks/papers)."),
]


@dataclass(frozen=True)
class Choice:
    """Experiments with the settings that win over theirs; without any it is one run."""

    experiments: Sequence[Experiment]
    overrides: Mapping[str, Scalar]
    suite: Suite | None = None
    """The suite of papers that was asked for."""
    file: Path | None = None
    """The user's file of experiments."""

    def cells(self, tuned: "Mapping[str, TunedValues] | None" = None) -> "list[Cell]":
        """Return the cells of all tables. Of several experiments an error names the one that it is about.

        `tuned` are the values that trials chose, by experiment; None plans tuned rows with the first value.
        """
        from fedskew.experiments.plan import plan  # with torch

        cells = []
        for experiment in self.experiments:
            values = None if tuned is None else tuned.get(experiment.name, {})
            several = len(self.experiments) > 1
            with naming(experiment.name) if several else nullcontext():
                cells += plan(experiment, self.overrides, tuned=values)
        return cells

    def trials(self) -> "list[Cell]":
        """Return the trials of all experiments. Most have none."""
        from fedskew.experiments.plan import trials  # with torch

        of_each = [trials(experiment, self.overrides) for experiment in self.experiments]
        return [cell for cells in of_each for cell in cells]


def choose(
    names: Sequence[str],
    file: Path | None,
    settings: Iterable[str],
    methods: Sequence[str],
    seeds: Sequence[str],
    options: Mapping[str, Scalar | None],
    need_data: bool = True,
) -> Choice:
    """Return the runs of a command line; several methods or seeds without an experiment become an experiment.

    Args:
        names: of experiments.
        file: the user's file of experiments.
        settings: the texts KEY=VALUE of --set.
        methods: the lists with commas of --method.
        seeds: those of --seed.
        options: the settings that have an option of their own, None where it is not given.
        need_data: whether files of one's own data must exist, which a dry run does without.

    Raises:
        SettingError: a setting that is given twice, or methods beside experiments, which name theirs.
        DataError: files of one's own data do not exist.
    """
    overrides = read_texts(settings, defaults())
    chosen = words("method", methods)
    seed_words = words("seed", seeds)
    given = {"method": ",".join(chosen), "seed": ",".join(seed_words)}
    by_option = {key: value for key, value in options.items() if value is not None}
    for key, value in {**by_option, **given}.items():
        is_twice = value != "" and key in overrides
        require(not is_twice, f"--{key}", value, "--set states it as well")

    check_settings(overrides, chosen, alone=need_data and not names)
    overrides |= by_option
    seed_numbers = tuple(number("--seed", word) for word in seed_words)
    is_once = len({*seed_numbers}) == len(seed_numbers)  # 00 is 0 as well
    require(is_once, "--seed", given["seed"], "must state each once")
    suite = None
    experiments: list[Experiment] = []
    if names:
        rule = "does not go with experiments, which name their methods themselves"
        require(not chosen, "--method", given["method"], rule)
        suite = papers_suite(names, file)
        experiments = find_all(names, file)
        # Without experiments the command would be one run from settings.
        require(bool(experiments), "experiment", ", ".join(names), "is a suite without experiments")
    elif len(chosen) > 1 or len(seed_numbers) > 1:
        chosen = chosen or [str(overrides.pop("method", defaults()["method"]))]
        rows = tuple(Row(method, method) for method in chosen)
        experiments = [Experiment("comparison", " and ".join(chosen), rows)]
    else:
        for name in chosen:
            overrides["method"] = name
        for seed in seed_numbers:
            overrides["seed"] = seed
    if seed_numbers:
        experiments = [replace(experiment, seeds=seed_numbers) for experiment in experiments]
    return Choice(experiments, overrides, suite, file)


def checked_texts(settings: Iterable[str] | None, alone: bool = True) -> dict[str, Scalar]:
    """Return the settings of the texts KEY=VALUE of --set, checked as `check_settings` does."""
    overrides = read_texts(settings or [], defaults())
    check_settings(overrides, alone=alone)
    return overrides


def check_settings(
    overrides: Mapping[str, Scalar],
    methods: Sequence[str] = (),
    alone: bool = True,
) -> None:
    """Raise SettingError or DataError for what is seen to be wrong without torch, whose import takes seconds.

    That is an unknown key or method, a value of another type, data settings out of range, and with `alone`, where no
    experiment adds settings, data that do not exist. `server_app.settings.parse` checks the rest, as the values of keys
    with a dot and of plugins.
    """
    values = {}
    for key, value in overrides.items():
        if key in defaults():
            values[key] = typed(key, value, type(defaults()[key]))
        elif "." not in key:
            raise no_such(key, value, defaults())
    weights = str(overrides.get("weights", ""))
    found = not weights or Path(weights).expanduser().is_file()
    require(found, "weights", weights, "there is no such file")
    data = built(DataSettings, values)
    if alone:
        has_own = any(map(is_own, members(data.dataset)))
        (require_there if has_own else resolve)(data)
    stated = [str(overrides["method"])] if "method" in overrides else []
    for method in [*methods, *stated]:
        for name in map(str.strip, method.split("+")):
            is_plugin = ":" in name or entry_points(group=GROUP, name=name)
            if name not in METHODS and not is_plugin:
                raise no_method(method, name)


def words(key: str, lists: Sequence[str]) -> list[str]:
    """Return the words of lists with commas, which an option takes once or several times."""
    listed: list[str] = []
    for text in lists:
        listed += [word.strip() for word in text.split(",")]
    option = f"--{key}"
    value = ",".join(listed)
    require(all(listed), option, value, "must be values separated by commas")
    require(len(set(listed)) == len(listed), option, value, "must state each once")
    return listed


def number(key: str, word: str) -> int:
    """Return a word as an integer. Raises SettingError for one that is none."""
    try:
        return int(word)
    except ValueError:
        raise SettingError(key, word, "must be integers separated by commas") from None
