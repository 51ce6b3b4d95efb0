"""Which experiments a command names: the shipped ones, and those of the user's own file."""

import difflib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from data import SettingError, require
from fedskew.experiments.experiments import FILE, Experiment, Suite, entries_in

log = logging.getLogger("fedskew")
HERE = Path("experiments.yaml")
"""The user's own, in the working folder."""
Entries = Mapping[str, Experiment | Suite]


def known_entries(named_file: Path | None = None) -> dict[str, Experiment | Suite]:
    """Return all experiments and suites by their names.

    Those of the user's file, `named_file` or experiments.yaml of the working folder, replace shipped ones.
    """
    file = user_file(named_file)
    return entries_in(FILE) | (entries_in(file) if file else {})


def user_file(named_file: Path | None = None) -> Path | None:
    """Return the user's file of experiments: the one named, or the working folder's where it is not the shipped."""
    if named_file is None and HERE.is_file() and not (FILE.is_file() and HERE.samefile(FILE)):
        return HERE
    return named_file


def file_of_suite(suite: str, named_file: Path | None = None) -> Path:
    """Return the file whose papers a suite is about: the user's where it has the suite, else the shipped one."""
    file = user_file(named_file)
    return file if file is not None and suite in entries_in(file) else FILE


def sized_suite(names: Sequence[str], named_file: Path | None = None) -> Suite | None:
    """Return the suite of papers that a command names, as papers-full; None where it names none.

    Raises SettingError where it names anything beside such a suite: its claims are of one file and one size.
    """
    known = known_entries(named_file)
    for name in names:
        entry = known.get(name)
        if isinstance(entry, Suite) and entry.size:
            rule = f"does not go with others: {name} stands for a whole file's papers"
            require(len(names) == 1, "experiment", ", ".join(names), rule)
            return entry
    return None


def find_all(names: Sequence[str], named_file: Path | None = None) -> list[Experiment]:
    """Return the experiments of those names, each once; a suite's name stands for all of its experiments.

    Logs a warning for experiments from the working folder's file, which nobody named.

    Raises:
        SettingError: there is no such experiment; the remedy is the nearest name.
    """
    file = user_file(named_file)
    of_the_user = entries_in(file) if file else {}
    known = entries_in(FILE) | of_the_user
    found_there = [name for name in names if name in of_the_user]
    if named_file is None and found_there:
        log.warning("read from ./%s: %s", file, ", ".join(found_there))
    chosen: dict[str, Experiment] = {}
    for name in names:
        entry = known.get(name)
        if entry is None:
            raise no_experiment(name, known, file)
        for member in entry.experiments if isinstance(entry, Suite) else (name,):
            experiment = known[member]
            if not isinstance(experiment, Experiment):  # a user's suite has the name of one
                raise SettingError("experiments", member, "is no experiment", where=name)
            chosen[member] = experiment
    return list(chosen.values())


def no_experiment(name: str, known: Entries, file: Path | None) -> SettingError:
    """Return the error of a name that neither the user's file nor the shipped one has."""
    files = " or ".join(dict.fromkeys([file.name, FILE.name] if file else [FILE.name]))
    rule = f"is not in {files}"
    similar = difflib.get_close_matches(name, known, 1)
    if similar:
        return SettingError("experiment", name, rule, remedy=f"did you mean {similar[0]}?")
    return SettingError("experiment", name, f"{rule}; known are {', '.join(known)}")
