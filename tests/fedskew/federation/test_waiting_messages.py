"""Messages that wait at the SuperLink, as its database says."""

import sqlite3
import time
import warnings
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState

from fedskew.federation.waiting_messages import IDS, WaitingMessages

HOUR = 3600.0
NEAR, FAR = 7, IDS - 7
"""Two node ids; flwr draws them from all numbers of 64 bits."""


@pytest.fixture
def superlink(tmp_path: Path) -> SqlLinkState:
    """flwr's own state in a file, as a SuperLink opens it."""
    state = SqlLinkState(str(tmp_path / "state.db"), Mock(), Mock())
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # alembic's
        state.initialize()
    return state


@pytest.fixture
def waiting(superlink: SqlLinkState, tmp_path: Path) -> WaitingMessages:
    return WaitingMessages(tmp_path / "state.db")


def put(waiting: WaitingMessages, node: int, age: float = 0.0, lives: float = HOUR) -> None:
    """Put a message for a node into the database."""
    with closing(sqlite3.connect(waiting.database)) as connection, connection:
        columns = connection.execute("PRAGMA table_info(message_ins)").fetchall()
        row: dict[str, object] = {
            name: b"" if kind == "BLOB" else "" if kind in ("TEXT", "VARCHAR") else 0
            for _, name, kind, *_ in columns
        }
        number = connection.execute("SELECT count(*) FROM message_ins").fetchone()[0]
        row |= {
            "message_id": f"message {number}",
            "dst_node_id": node if node < IDS // 2 else node - IDS,
            "created_at": time.time() - age,
            "ttl": lives,
        }
        marks = ", ".join("?" * len(row))
        names = ", ".join(row)
        values = tuple(row.values())
        connection.execute(f"INSERT INTO message_ins ({names}) VALUES ({marks})", values)


def test_it_says_of_whom_flwr_would_give_a_message(
    superlink: SqlLinkState, waiting: WaitingMessages
) -> None:
    """The query is flwr's own condition: a release that changes it fails here."""
    assert waiting.nodes() == set()
    put(waiting, NEAR)
    put(waiting, FAR)
    put(waiting, 8, age=2 * HOUR)
    assert waiting.nodes() == {NEAR, FAR}
    assert not superlink._claim_message_ins_rows(8, 1), "it is too old"
    for node, left in ((NEAR, {FAR}), (FAR, set())):
        assert len(superlink._claim_message_ins_rows(node, 1)) == 1
        assert waiting.nodes() == left
        assert not superlink._claim_message_ins_rows(node, 1)
