"""Replies that are incomplete: whose objects never arrive, as the site was killed while it uploaded, or without scores.

flwr's HttpGrid stands before a SuperLink of this file.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse, PushObjectResponse
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import (
    GetNodesResponse,
    PullAppMessagesResponse,
    PushAppMessagesResponse,
)
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.superlink.grid.http_grid import HttpGrid

from client_app.flower_internals import message_from_proto, message_to_proto
from client_app.local_site import NOT_FINITE, POLICY
from data.agreement import as_flower_has_it, read_agreement
from fedskew.engines.local import identify
from strategies.core.exchange import (
    Exchange,
    Request,
    TooFewReplies,
    collect_replies,
)
from strategies.core.node_assignment import ExchangeSettings, SiteAssigner
from strategies.core.questions import evaluate_on_clients
from strategies.core.server import Diverged
from strategies.core.whole_replies import between_sites
from tests.site_files import NAMES, agreed, public_key, write

NODES = dict(zip((100, 101, 102), NAMES, strict=True))
VICTIM = 101
MOST_LOOKS = 50
"""How often an object may be asked for that never arrives: flwr's Grid asks for 180 seconds and for no other."""


class SuperLink:
    """Three sites that reply at once. The victim, when first asked, uploads all but the last object of its reply.

    `event` says what becomes of it once that object was asked for three times: it is "killed" and goes offline, it has
    "restarted", the object has "arrived", or it "hangs".
    """

    def __init__(self, event: str) -> None:
        self.event = event
        self.looks = 0
        self.asked: list[int] = []
        self.announced: list[tuple[Any, ObjectTree]] = []
        self.objects: dict[str, bytes] = {}
        self.unfinished = ""
        """Id of the object that the victim has not uploaded."""

    @property
    def now(self) -> str:
        """What has become of the victim by now."""
        return self.event if self.looks >= 3 else "uploads"

    def GetNodes(self, request: Any) -> Any:
        nodes = []
        for node, name in NODES.items():
            key = as_flower_has_it(public_key(name))
            since = self.now if (node, self.now) == (VICTIM, "restarted") else "the beginning"
            if (node, self.now) != (VICTIM, "killed"):
                nodes.append(NodeInfo(node_id=node, public_key=key, last_activated_at=since))
        return GetNodesResponse(nodes=nodes)

    def PushMessages(self, request: Any) -> Any:
        ids = []
        for proto in request.messages_list:
            ids.append(proto.metadata.message_id)
            self.announced.append(self.reply(message_from_proto(proto)))
        return PushAppMessagesResponse(message_ids=ids)

    def PushObject(self, request: Any) -> Any:
        return PushObjectResponse(stored=True)

    def reply(self, message: Message) -> tuple[Any, ObjectTree]:
        """Upload a site's reply to a message, and return the reply without its content, and the tree of its objects."""
        node = message.metadata.dst_node_id
        self.asked.append(node)
        client = list(NODES).index(node)
        content = RecordDict({f"{client}/metrics": MetricRecord({"loss": float(client)})})
        reply = Message(content, reply_to=message)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            for name, part in get_all_nested_objects(reply).items():
                self.objects[name] = part.deflate()
            if node == VICTIM and not self.unfinished:
                self.unfinished = reply.object_id
            return message_to_proto(remove_content_from_message(reply)), get_object_tree(reply)

    def PullMessages(self, request: Any) -> Any:
        """Announce each reply once, as flwr does, the victim's before the others."""
        response = PullAppMessagesResponse()
        for proto, tree in sorted(
            self.announced, key=lambda pair: pair[0].metadata.src_node_id != VICTIM
        ):
            assert proto.metadata.reply_to_message_id in request.message_ids
            response.messages_list.append(proto)
            response.message_object_trees.append(tree)
        self.announced.clear()
        return response

    def PullObject(self, request: Any) -> Any:
        if request.object_id == self.unfinished and self.now != "arrived":
            self.looks += 1
            assert self.looks < MOST_LOOKS, "everybody waits for an object that never arrives"
            return PullObjectResponse(object_found=True)
        content = self.objects.get(request.object_id)
        return PullObjectResponse(
            object_found=content is not None,
            object_available=content is not None,
            object_content=content or b"",
        )

    def ConfirmMessageReceived(self, request: Any) -> None:
        del self.objects[request.message_object_id]


def asked(superlink: SuperLink, tmp_path: Path, timeout: float) -> Exchange:
    """Return the exchange of a round of training."""
    identify()
    grid: Any = HttpGrid(token="none")
    grid._client, grid._run = superlink, SimpleNamespace(run_id=1)
    assigner = SiteAssigner(read_agreement(write(tmp_path / "federation.toml", agreed())))
    settings = ExchangeSettings(timeout=timeout, node_wait=0.0)
    request = Request("train", {"round": 1}, {}, "{}", {})
    return collect_replies(between_sites(grid), [0, 1, 2], request, settings, assigner)


@pytest.mark.parametrize(
    ("event", "timeout", "failures", "times_asked"),
    [
        ("killed", 600.0, {1}, 3),
        ("restarted", 600.0, set(), 4),
        ("arrived", 600.0, set(), 3),
        ("hangs", 0.2, {1}, 3),
    ],
)
def test_a_reply_that_is_incomplete_holds_back_no_other(
    event: str,
    timeout: float,
    failures: set[int],
    times_asked: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("strategies.core.exchange.NODES_LOOK", 0.0)
    superlink = SuperLink(event)
    exchange = asked(superlink, tmp_path, timeout)
    losses = {client: answer.metrics["loss"] for client, answer in exchange.answers.items()}
    assert losses == {client: float(client) for client in {0, 1, 2} - failures}
    assert exchange.failures.keys() == failures
    assert len(superlink.asked) == times_asked


def test_between_sites_a_failure_is_that_of_a_site(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strategies.core.exchange.NODES_LOOK", 0.0)
    exchange = asked(SuperLink("killed"), tmp_path, 600.0)
    with pytest.raises(TooFewReplies) as error:
        exchange.check_enough(1.0, "round 7")
    assert "site east" in caplog.text and "min-sites" in str(error.value)
    exchange.check_enough(2 / 3, "round 7")


# ---- what clients cannot measure -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kinds", "error"), [([POLICY, NOT_FINITE], Diverged), ([POLICY, POLICY], TooFewReplies)]
)
def test_outputs_that_are_not_finite_anywhere_end_the_run_as_diverged(
    kinds: list[str], error: type[Exception]
) -> None:
    """Sites that do not allow a measurement are no divergence."""
    exchange = Exchange([0, 1])
    errors = {
        f"{client}/error": ConfigRecord({"reason": "it cannot measure", "kind": kind})
        for client, kind in enumerate(kinds)
    }
    exchange.sort(RecordDict(errors), 1, {0, 1})  # type: ignore[arg-type]
    rounds: Any = SimpleNamespace(
        deployed={},
        clients=2,
        round=4,
        request=lambda kind, task, states: None,
        ask=lambda grid, clients, request: exchange,
        exchange_settings=SimpleNamespace(min_reply_share=1.0),
    )
    with pytest.raises(error):
        evaluate_on_clients(rounds, None, 10, {}, [], False)  # type: ignore[arg-type]
