"""The task that the executor works on, kept in a file for the executor that follows one that was killed.

flwr's SuperNode waits one minute for the answer to a message that was pulled. If a task has begun and its message was
never pulled, it waits forever. The next executor therefore reads the file and answers with an error.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


class PendingTask:
    """A file with the token of the task in hand and, once the message is pulled, the message without its content."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def write(self, token: str, message: bytes = b"") -> None:
        """Save the task in hand, readable by this user only: its token gives access to the task."""
        content = json.dumps({"token": token, "message": b64encode(message).decode()})
        with suppress(OSError):  # on a full disk the task is answered all the same
            self.file.touch(0o600)
            self.file.write_text(content)

    def read(self) -> tuple[str, bytes] | None:
        """Return the saved token and serialized message, which may be empty; None without a readable file."""
        try:
            saved = json.loads(self.file.read_text())
            return str(saved["token"]), b64decode(saved["message"], validate=True)
        except (OSError, ValueError, TypeError, LookupError):
            return None

    def clear(self) -> None:
        """Delete the file: no task is in hand."""
        with suppress(OSError):
            self.file.unlink(missing_ok=True)


class MessageRecorder:
    """A runtime client that calls `pulled` with every message that it pulls, before it fetches the content."""

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
