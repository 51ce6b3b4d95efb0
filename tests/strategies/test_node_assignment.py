"""Between sites a message goes to its site's own node, known by its key; who is away costs one wait and no more."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from data.agreement import as_flower_has_it, read_agreement
from fedskew.engines.local import Node, identify
from server_app.run_folder import RunFolder
from strategies.core import exchange
from strategies.core.node_assignment import (
    ExchangeSettings,
    NodeAssigner,
    SiteAssigner,
    absence_of,
    is_absence_of,
)
from tests.site_files import NAMES, agreed, public_key, write

SETTINGS = ExchangeSettings(node_wait=7.0)


class Nodes:
    """A grid on which only the given sites are connected, and a node that is nobody's."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.looks = 0

    def get_nodes(self) -> Iterable[Node]:
        self.looks += 1
        keys = [as_flower_has_it(public_key(name)) for name in ("stranger", *self.names)]
        return [Node(100 + number, key) for number, key in enumerate(keys)]


@pytest.fixture
def assigner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SiteAssigner:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    return SiteAssigner(read_agreement(write(tmp_path / "federation.toml", agreed())))


def test_an_absent_site_is_waited_for_once_and_asked_when_it_is_back(
    assigner: SiteAssigner, caplog: pytest.LogCaptureFixture
) -> None:
    grid = Nodes("south", "north")
    assert assigner.assign(grid, [0, 1, 2], SETTINGS) == {102: [0], 101: [2]}  # type: ignore[arg-type]
    assert time.monotonic() == pytest.approx(SETTINGS.node_wait, abs=0.5)
    assert list(assigner.absent) == [1]
    assert "site east" in caplog.text
    waited = time.monotonic()
    assert assigner.assign(grid, [0, 1, 2], SETTINGS).keys() == {101, 102}  # type: ignore[arg-type]
    assert assigner.assign(grid, [1], SETTINGS) == {}  # type: ignore[arg-type]
    assert time.monotonic() == waited and len(caplog.messages) == 1
    grid.names.append("east")
    assert assigner.assign(grid, [0, 1, 2], SETTINGS)[103] == [1]  # type: ignore[arg-type]
    assert assigner.absent == {} and time.monotonic() == waited
    assert {*assigner.clients.values()} == {*range(len(NAMES))}


def test_a_site_that_comes_while_it_is_waited_for_is_asked(assigner: SiteAssigner) -> None:
    grid = Nodes("south", "north")
    sites = grid.get_nodes

    def later() -> Iterable[Node]:
        if time.monotonic() > 200:
            grid.names.append("east")
        return sites()

    grid.get_nodes = later  # type: ignore[method-assign]
    settings = ExchangeSettings(node_wait=300.0)
    assert assigner.assign(grid, [0, 1, 2], settings).keys() == {101, 102, 103}  # type: ignore[arg-type]
    assert 200 < time.monotonic() < 205


def test_an_exchange_that_waits_says_so_and_takes_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line stands in the run's folder, where `fedskew federation run` finds it, for as long as the wait."""
    identify()
    folder, seen = RunFolder(tmp_path), list[str]()
    agreement = read_agreement(write(tmp_path / "federation.toml", agreed()))
    assigner = SiteAssigner(agreement, folder.note_waiting)

    def slow(grid: Any, messages: Any, timeout: float, late: Any) -> list[Any]:
        late([103], 60.0)
        seen.append(folder.waiting_file.read_text())
        return []

    monkeypatch.setattr(exchange, "replies", slow)
    request = exchange.Request("train", {"round": 1}, {}, "{}", {})
    settings = ExchangeSettings(node_wait=0.0)
    exchange.collect_replies(
        Nodes("south", "north", "east"), [0, 1, 2], request, settings, assigner
    )  # type: ignore[arg-type]
    assert "site east" in seen[0] and "60 s" in seen[0]
    assert not folder.waiting_file.exists()


def test_a_sentence_names_at_most_twenty_clients(assigner: SiteAssigner) -> None:
    twenty = ", ".join(map(str, range(20)))
    assert NodeAssigner().listed([1]) == "client 1"
    assert NodeAssigner().listed(range(20)) == f"clients {twenty}"
    assert NodeAssigner().listed(range(21)) == f"clients {twenty}, and 1 more"
    assert assigner.listed([1, 0]) == f"sites {NAMES[0]}, {NAMES[1]}"


def test_an_absence_is_known_by_its_site_also_behind_a_question() -> None:
    absence = absence_of("north")
    assert is_absence_of("north", absence)
    assert is_absence_of("north", f"class-statistics: {absence}")
    assert not is_absence_of("north", absence_of("far north"))
    assert not is_absence_of("south", absence)
