"""The coordinator's requests to its SuperLink."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from fedskew.federation import superlink
from fedskew.federation.superlink import READING, Control, Unreachable


class Client:
    """flwr's client of the control interface, to which some calls end without an answer."""

    def __init__(self, *errors: httpx.HTTPError) -> None:
        self.errors = list(errors)
        self.calls: list[str] = []

    def __getattr__(self, call: str) -> Any:
        def answer(request: str) -> str:
            self.calls.append(call)
            if self.errors:
                raise self.errors.pop(0)
            return request

        return answer


def control_of(client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Control:
    authority = tmp_path / "ca.crt"
    authority.touch()
    monkeypatch.setattr(superlink.ControlHttpClient, "from_server_address", lambda *_, **__: client)
    return Control(1, authority)


CLOSED = httpx.RemoteProtocolError("Server disconnected without sending a response.")
AWAY = httpx.ConnectError("All connection attempts failed")


@pytest.mark.parametrize("call", READING)
def test_a_connection_that_was_idle_and_ends_is_no_outage(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run would be ended and submitted again, although nothing has happened."""
    client = Client(CLOSED)
    assert control_of(client, monkeypatch, tmp_path).ask(call, "a request") == "a request"
    assert client.calls == [call, call]


@pytest.mark.parametrize("errors", [(CLOSED, AWAY), (CLOSED, CLOSED), (AWAY,)])
def test_a_superlink_that_is_away_is_an_outage(
    errors: tuple[httpx.HTTPError, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(*errors)
    with pytest.raises(Unreachable):
        control_of(client, monkeypatch, tmp_path).ask("ListRuns", "a request")
    assert client.calls == ["ListRuns"] * len(errors)


def test_what_changes_something_is_asked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(CLOSED)
    with pytest.raises(Unreachable):
        control_of(client, monkeypatch, tmp_path).ask("StartRun", "a request")
    assert client.calls == ["StartRun"]
