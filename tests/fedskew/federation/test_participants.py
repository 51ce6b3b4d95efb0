"""The gateway hands out a run's messages to the sites of that run, and answers those for others in their place."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from site_files import NAMES, agreed, write

from client_app.flower_internals import TaskIdentity, message_from_proto, message_to_proto
from client_app.local_site import NOT_A_PARTICIPANT
from data import DataError
from fedskew.federation.flower_internals import (
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
    PushObjectRequest,
)
from fedskew.federation.folder import FederationFolder
from fedskew.federation.participants import FILE, PUSH, UPLOAD, Participants, decline
from fedskew.federation.submission import submit


def test_all_sites_take_part_in_a_run_that_names_none(tmp_path: Path) -> None:
    participants = Participants(tmp_path)
    assert participants.allows("north", 7)
    participants.set(7, ["north", "east"])
    participants.set(8, ["south"])
    assert participants.allows("north", 7) and not participants.allows("south", 7)
    assert participants.allows("south", 8) and participants.allows("north", 9)


def test_a_damaged_file_hands_out_nothing(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    assert not Participants(tmp_path).allows("north", 7)


def test_a_message_is_answered_as_the_site_would_answer_it() -> None:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    asked = Message(RecordDict({"c": ConfigRecord({"x": 1})}), dst_node_id=5, message_type="train")
    asked.metadata.__dict__["_message_id"] = asked.object_id
    proto = message_to_proto(asked)
    sent: dict[str, bytes] = {}

    async def ask(request: Any, pieces: list[bytes], path: str = "") -> Any:
        sent[path] = b"".join(pieces)
        return 200, PushMessagesResponse(session_id="s").SerializeToString(), {}

    request: Any = None
    asyncio.run(decline(PullMessagesResponse(messages_list=[proto]), 5, request, ask))
    pushed = PushMessagesRequest.FromString(sent[PUSH])
    reply = message_from_proto(pushed.messages_list[0])
    assert reply.error.code == NOT_A_PARTICIPANT
    assert "takes no part in this run" in reply.error.reason
    assert reply.metadata.reply_to_message_id == asked.metadata.message_id
    assert reply.metadata.src_node_id == pushed.node.node_id == 5
    uploaded = PushObjectRequest.FromString(sent[UPLOAD])
    assert uploaded.object_id == pushed.message_object_trees[0].object_id
    assert (uploaded.session_id, uploaded.node.node_id) == ("s", 5)
    assert sent.keys() == {PUSH, UPLOAD}  # a confirmation would drop objects that are on their way


@pytest.mark.parametrize(("own", "sites"), [(False, []), (True, ["west"]), (True, [NAMES[0]])])
def test_a_submission_that_cannot_be_is_refused(
    tmp_path: Path, own: bool, sites: list[str]
) -> None:
    write(tmp_path / "federation.toml", agreed())
    if own:
        (tmp_path / "app.fab").write_bytes(b"")
    with pytest.raises(DataError):
        submit(FederationFolder(tmp_path), sites, "", print)
