"""A site's request for an object that the server announces before it has it."""

from types import SimpleNamespace
from typing import Any

import pytest

from client_app import flower_internals as polling
from client_app.flower_internals import PollingClient

UNKNOWN = SimpleNamespace(object_found=False, object_available=False)
ON_ITS_WAY = SimpleNamespace(object_found=True, object_available=False)
HERE = SimpleNamespace(object_found=True, object_available=True)


def client_of(*responses: Any) -> PollingClient:
    """Return a client whose server gives these responses, one after the other."""
    given = iter(responses)
    return PollingClient(SimpleNamespace(PullObject=lambda request: next(given)))


@pytest.mark.parametrize("responses", [[HERE], [UNKNOWN], [ON_ITS_WAY, ON_ITS_WAY, HERE]])
def test_an_object_is_asked_for_until_it_is_there(
    responses: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "POLL", 0.0)
    assert client_of(*responses).PullObject("its name") is responses[-1]


def test_who_closes_ends_the_wait() -> None:
    client = client_of(ON_ITS_WAY, ON_ITS_WAY)
    client.close()
    with pytest.raises(TimeoutError):
        client.PullObject("its name")
