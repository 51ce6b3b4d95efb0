"""The coordinator's requests to its SuperLink."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from fedskew.federation import control as control_module
from fedskew.federation.control import Control, Unreachable


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
    (tmp_path / "ca.crt").touch()
    folder: Any = SimpleNamespace(
        control_secret="secret",
        coordinator=SimpleNamespace(superlink_port=1),
        authority=(tmp_path / "ca.crt", tmp_path / "ca.key"),
    )
    monkeypatch.setattr(
        control_module.ControlHttpClient, "from_server_address", lambda *_, **__: client
    )
    return Control(folder)


CLOSED = httpx.RemoteProtocolError("Server disconnected without sending a response.")
AWAY = httpx.ConnectError("All connection attempts failed")


@pytest.mark.parametrize(
    ("call", "errors", "asked", "answers"),
    [
        ("ListRuns", (CLOSED,), 2, True),  # a connection that was idle is no outage
        ("ListRuns", (CLOSED, CLOSED), 2, False),
        ("ListRuns", (AWAY,), 1, False),
        ("StartRun", (CLOSED,), 1, False),  # what changes something is asked for once
    ],
)
def test_a_question_is_asked_again_where_nothing_has_happened(
    call: str,
    errors: tuple[httpx.HTTPError, ...],
    asked: int,
    answers: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client(*errors)
    control = control_of(client, monkeypatch, tmp_path)
    if answers:
        assert control.ask(call, "a request") == "a request"
    else:
        with pytest.raises(Unreachable):
            control.ask(call, "a request")
    assert client.calls == [call] * asked
