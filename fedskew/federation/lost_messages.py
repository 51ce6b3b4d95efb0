"""What a site was asked and will never answer: flwr does it in its place, while the site's node is away.

flwr gives a message out once. What a SuperNode was asked is lost when it is killed, as is what a gate had in hand that
was, or what was on its way when the SuperLink was. flwr answers such a message only when the ServerApp asks for the
reply of a node that is away; so the node is let be away for a moment, by its own signature.
"""

import asyncio
import logging
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable

from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from starlette.requests import Request

from fedskew.federation.object_cache import Reply

log = logging.getLogger("fedskew.gate")
BEGIN, END = "/v1/fleet/activate-node", "/v1/fleet/deactivate-node"
SILENCE = 30.0
"""Seconds after which a SuperNode that has not been heard of is gone, if another begins; it sends a sign of life every
23 at most, and its key alone is not to end it before."""
ABSENCE = 3.0
"""Seconds for which a node is away when what it was asked is lost; a run between sites asks for replies every 0.3 s."""
DOUBT = 5.0
"""Seconds for which a site that asks is given nothing until what it was asked counts as lost, where that may be."""


class Absence:
    """Which sites are there, by what they ask; `ask` passes a body on to a path as a request's."""

    def __init__(
        self, sites: Iterable[str], ask: Callable[[Request, list[bytes], str], Awaitable[Reply]]
    ) -> None:
        self.ask = ask
        self.nodes: dict[str, int] = {}
        """By site, the node that has asked for messages, and has not said that it ends."""
        self.heard = dict.fromkeys(sites, 0.0)
        """When a site last did anything but begin."""
        self.away = set[str]()
        self.uncertain = set(self.heard)
        """Sites whose message may be lost that the SuperLink has given out: with the former gate, or on its way."""

    def is_doubtful(self, site: str, seconds: float) -> bool:
        """Return whether what a site was asked counts as lost after it has asked for so long and been given nothing."""
        return site in self.uncertain and seconds > DOUBT

    async def end_former(self, request: Request, site: str) -> None:
        """Let a site's former SuperNode, which has not said that it ends and is silent, be away for a moment.

        flwr takes it for online for up to a minute, and refuses its successor meanwhile; one that comes just then would
        leave a round waiting for what nobody will answer.
        """
        if site in self.nodes and time.monotonic() - self.heard[site] > SILENCE:
            await self.let_be_away(request, site, self.nodes.pop(site))

    async def give_up(self, request: Request, site: str) -> None:
        """Let a site's node, which is there and asks, be away for a moment, and begin again in its name."""
        self.uncertain.discard(site)
        await self.let_be_away(request, site, self.nodes[site])
        key = b64decode(request.headers[FLEET_HTTP_PUBLIC_KEY_HEADER])
        again = ActivateNodeRequest(public_key=key, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        await self.ask(request, [again.SerializeToString()], BEGIN)

    async def let_be_away(self, request: Request, site: str, node: int) -> None:
        """Let a site's node be away for a moment, in which no sign of life is to pass."""
        log.info("%s is away for %g s: what it was asked may be lost", site, ABSENCE)
        self.away.add(site)
        try:
            ending = DeactivateNodeRequest(node_id=node)
            await self.ask(request, [ending.SerializeToString()], END)
            await asyncio.sleep(ABSENCE)
        finally:
            self.away.discard(site)

    async def ended(self, site: str) -> None:
        """Return once a site's node is no longer let be away."""
        while site in self.away:
            await asyncio.sleep(0.1)
