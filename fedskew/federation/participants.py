"""The sites that take part in a run: the door answers the messages of others with an error in the site's place.

flwr shows a ServerApp every node that is online, and has no list of a run's own. `fedskew federation submit --site`
writes one, and the door then hands out the run's messages to those sites alone.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from starlette.responses import Response

from client_app.local_site import NOT_A_PARTICIPANT
from fedskew.federation.flower_internals import (
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
    PushObjectRequest,
    error_reply,
)

FILE = "participants.json"
"""File in the folder of flwr's state: by run, the names of its sites."""
REASON = "the site takes no part in this run"
PUSH, UPLOAD = "/v1/fleet/push-messages", "/v1/fleet/push-object"


class Participants:
    """The sites of every run that names some; all sites take part in the others."""

    def __init__(self, state: Path) -> None:
        self.file = state / FILE

    def set(self, run: int, sites: Sequence[str]) -> None:
        """Save the sites of a run."""
        entries = self.read()
        entries[str(run)] = sorted(sites)
        draft = self.file.with_name(f"{FILE}.tmp")
        draft.write_text(json.dumps(entries), encoding="utf-8")
        draft.replace(self.file)

    def read(self) -> dict[str, list[str]]:
        """Return the sites by run. Raises ValueError for a damaged file: then no run's messages are handed out."""
        try:
            entries: dict[str, list[str]] = json.loads(self.file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return entries

    def allows(self, site: str, run: int) -> bool:
        """Return whether a site takes part in a run."""
        try:
            sites = self.read().get(str(run))
        except ValueError:
            return False
        return sites is None or site in sites


async def decline(
    response: PullMessagesResponse,
    node: int,
    ask: Callable[[str, bytes], Awaitable[Response]],
) -> None:
    """Answer a site's messages with an error, in its place.

    That they have come is not confirmed: the SuperLink would then drop objects that the ServerApp still pushes.

    Args:
        response: of the SuperLink to the site's question for messages.
        node: the site's node.
        ask: sends a body to a path of the SuperLink, with the headers of that question.
    """
    for message in response.messages_list:
        reply, tree, content = error_reply(message, NOT_A_PARTICIPANT, REASON)
        pushing = PushMessagesRequest(messages_list=[reply], message_object_trees=[tree])
        pushing.node.node_id = node
        answer = await ask(PUSH, pushing.SerializeToString())
        pushed = bytes(answer.body) if answer.status_code == 200 else b""
        uploading = PushObjectRequest(
            run_id=message.metadata.run_id,
            object_id=tree.object_id,
            object_content=content,
            session_id=PushMessagesResponse.FromString(pushed).session_id,
        )
        uploading.node.node_id = node
        await ask(UPLOAD, uploading.SerializeToString())
