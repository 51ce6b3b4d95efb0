"""Text from elsewhere: what clients, workers, files and errors say."""

import builtins
import math

WORDS = 1000
"""Characters of a text from elsewhere that are kept."""
PACKAGES = ("data", "client_app", "strategies", "server_app", "fedskew")


def is_whole(text: str) -> bool:
    """Return whether a text is digits 0 to 9 alone.

    `str.isdigit`, `str.isdecimal` and `int` also take the digits of other scripts, such as full-width ones: two texts
    that differ would be one number.
    """
    return text.isascii() and text.isdigit()


def finite_number(text: str) -> float:
    """Return the number that a text is. Raises ValueError for digits of other scripts, `_`, NaN and infinity."""
    number = float(text) if text.isascii() and "_" not in text else math.nan
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is no finite number")
    return number


def printable(text: object) -> str:
    """Return a text from elsewhere for records and terminals: one line, cut at `WORDS`, control characters escaped."""
    whole = str(text)
    kept = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in whole[:WORDS])
    return "".join(kept) + f"... ({len(whole)} characters)" * (len(whole) > WORDS)


def said(error: Exception) -> str:
    """Return what an error of another library says, in one line that is not endless: it may quote the file."""
    return printable(" ".join(str(error).split())) or type(error).__name__


def sentence(error: BaseException) -> str:
    """Return what an error says, in one line."""
    kind = type(error)
    return spoken(
        f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."),
        " ".join(str(error).split()),
    )


def spoken(kind: str, words: str) -> str:
    """Return the words of an error whose class is `kind`, as tracebacks name it.

    Errors of our classes, RuntimeError and OSError speak in sentences; others mean little without their class.
    """
    known = getattr(builtins, kind, None)
    whole = kind.split(".")[0] in PACKAGES or (
        isinstance(known, type) and issubclass(known, RuntimeError | OSError)
    )
    return words if words and whole else f"{kind.split('.')[-1]}: {words}"
