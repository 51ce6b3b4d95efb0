"""Sanitizing of untrusted text from clients, workers, files and errors."""

import csv
import math
import shlex
from collections.abc import Callable, Sequence

LineSink = Callable[[str], object]
"""Takes one line for the user, such as the line of a round."""


class LineAboutRun(str):
    """A line that says where a run's results are, or that it has finished: a table of runs shows both itself."""


class LineAboutData(str):
    """A line that is the same for every run on the same data: who shows several runs shows it once."""


WORDS = 1000
"""Characters of a text from elsewhere that are kept."""
NAMES_RULE = "must be names separated by commas, one with a comma in it in double quotes"
"""What `names_in` asks of a text."""
PACKAGES = ("data", "client_app", "strategies", "server_app", "fedskew")


def is_whole(text: str) -> bool:
    """Return whether a text is digits 0 to 9 alone.

    `str.isdigit` and `str.isdecimal` also take the digits of other scripts, such as full-width ones.
    """
    return text.isascii() and text.isdigit()


def finite_number(text: str) -> float:
    """Return the number that a text is. Raises ValueError for digits of other scripts, `_`, NaN and infinity."""
    number = float(text) if text.isascii() and "_" not in text else math.nan
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is no finite number")
    return number


def names_in(text: str) -> tuple[str, ...]:
    """Return the names of a list in a setting: separated by commas, a name with a comma in it in double quotes.

    It is a row of a CSV file: `"adenoma, benign",carcinoma` has two names, and "" in quotes is one double quote.

    Raises:
        ValueError: quotes that do not end, or that end before the name does.
    """
    try:
        rows = list(csv.reader([text], skipinitialspace=True, strict=True))
    except csv.Error:
        raise ValueError(f"{text!r} {NAMES_RULE}") from None
    return tuple(name.strip() for name in rows[0]) or ("",)


def name_list(names: Sequence[str], separator: str = ",") -> str:
    """Return names as the list that `names_in` reads."""
    written = []
    for name in names:
        # Only where needed: run ids come from this text, and most names are without.
        if "," in name or "\n" in name or "\r" in name or name.startswith('"'):
            name = '"' + name.replace('"', '""') + '"'
        written.append(name)
    return separator.join(written)


def in_shell(word: str) -> str:
    """Return a word in the quotes by which a shell takes it as it is."""
    return shlex.quote(word) if "'" in word else f"'{word}'"


def escaped(text: str, keep: str = "") -> str:
    """Return a text whose control characters, but those of `keep`, are written as Python writes them: ESC is \\x1b."""
    if text.isprintable():
        return text
    letters = []
    for letter in text:
        if not letter.isprintable() and letter not in keep:
            letter = letter.encode("unicode_escape").decode()
        letters.append(letter)
    return "".join(letters)


def printable(text: object) -> str:
    """Return a text from elsewhere for records and terminals: one line, cut at `WORDS`, control characters escaped."""
    whole = str(text)
    if len(whole) <= WORDS:
        return escaped(whole)
    return f"{escaped(whole[:WORDS])}... ({len(whole)} characters)"


def said(error: Exception) -> str:
    """Return what an error of another library says, in one line that is not endless: it may quote the file."""
    return printable(" ".join(str(error).split())) or type(error).__name__


def sentence(error: BaseException) -> str:
    """Return what an error says, in one line.

    Errors of our classes, RuntimeError and OSError speak in sentences; others mean little without their class.
    """
    words = " ".join(str(error).split())
    package = type(error).__module__.partition(".")[0]
    of_builtins = package == "builtins" and isinstance(error, RuntimeError | OSError)
    if words and (package in PACKAGES or of_builtins):
        return words
    return f"{type(error).__name__}: {words}"
