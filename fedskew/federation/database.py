"""The SuperLink's database: a check for damage, and the remedy."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from fedskew.engines.processes import LaunchFailed
from fedskew.federation.folder import DATABASE, FederationFolder
from fedskew.federation.superlink import Failing

LOCKED = 0.5
"""Seconds to wait for a database that the SuperLink is writing."""


@contextmanager
def explained(folder: FederationFolder) -> Iterator[None]:
    """Within this context an error of the SuperLink's own becomes a LaunchFailed with the reason and the remedy."""
    try:
        yield
    except Failing as error:
        log = f"{folder.state}/superlink.log"
        reason = damage_of(folder) or f"{error}; {log} may say why; {anew(folder)}"
        raise LaunchFailed(reason) from None


def anew(folder: FederationFolder) -> str:
    """Return how to restart the services, as part of a sentence."""
    return (
        f"`fedskew federation down {folder.path}` and `up` start them anew, and the same command "
        "then goes on where the run stands"
    )


def damage_of(folder: FederationFolder) -> str:
    """Return what is wrong with the SuperLink's database and what to do, or "" where SQLite reads it.

    A database that is locked or cannot be opened is not damaged; nothing is written.
    """
    file = folder.state / DATABASE
    if not file.exists():
        return ""
    try:
        seen = quick_check(file)
    except sqlite3.OperationalError:
        return ""
    except sqlite3.DatabaseError as error:
        seen = str(error)
    if seen == "ok":
        return ""
    return (
        f"{file} is damaged ({' '.join(seen.split())[:200]}): `fedskew federation down {folder.path}`, move "
        "state.db* in that folder away, `up` registers the sites again, which come back by "
        "themselves, and the same command goes on from the run's checkpoint, which is not in that file"
    )


def quick_check(file: Path) -> str:
    """Return "ok" or SQLite's first complaint about a database. Raises sqlite3.DatabaseError for no database."""
    address = f"{file.resolve().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, timeout=LOCKED)) as connection:
        return str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
