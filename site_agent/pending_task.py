"""The task in hand, noted for the executor that comes after one that is killed.

flwr's SuperNode waits for ever for the answer to a message that nobody has pulled, of a task that has been begun; for
the answer to one that was pulled it waits for a minute.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


class Note:
    """A file that holds a task's token, and its message without what is in it once that is pulled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def write(self, token: str, message: bytes = b"") -> None:
        """Note the task in hand; nobody else may read its token."""
        with suppress(OSError):  # a full disk costs the note
            self.file.touch(0o600)
            self.file.write_text(
                json.dumps({"token": token, "message": b64encode(message).decode()})
            )

    def read(self) -> tuple[str, bytes] | None:
        """Return the token and the message of flwr's that were noted, which may be empty; None without a note."""
        try:
            left = json.loads(self.file.read_text())
            return str(left["token"]), b64decode(left["message"], validate=True)
        except (OSError, ValueError, TypeError, LookupError):
            return None

    def clear(self) -> None:
        """Note that no task is in hand."""
        with suppress(OSError):
            self.file.unlink(missing_ok=True)


class Noting:
    """A runtime client that hands on the message that it pulls, before what is in it comes."""

    def __init__(self, client: Any, pulled: Callable[[bytes], None]) -> None:
        self.client, self.pulled = client, pulled

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def PullMessages(self, request: Any) -> Any:
        """Return flwr's response."""
        response = self.client.PullMessages(request)
        for message in response.messages_list:
            self.pulled(message.SerializeToString())
        return response
