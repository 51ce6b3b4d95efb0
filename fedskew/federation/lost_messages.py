"""Recovery of messages that a site will never answer: flwr answers in its place while the site's node is offline.

flwr hands out a message once. A message is lost when the SuperNode that has it is killed, when the gateway that holds
it is killed, or when the SuperLink is killed while the message is on its way. flwr answers such a message itself, but
only when the ServerApp asks for the reply of a node that is offline. So the gateway marks the node offline for a
moment, with the node's own signed request.
"""

import asyncio
import logging
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable

from starlette.requests import Request

from fedskew.federation.flower_internals import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    HEARTBEAT_DEFAULT_INTERVAL,
    ActivateNodeRequest,
    DeactivateNodeRequest,
)
from fedskew.federation.object_cache import Reply

log = logging.getLogger("fedskew.gateway")
BEGIN, END = "/v1/fleet/activate-node", "/v1/fleet/deactivate-node"
SILENCE = 30.0
"""Seconds after which a SuperNode that has not been heard of is gone, if another begins; it sends a sign of life every
23 at most, and its key alone is not to end it before."""
OFFLINE_TIME = 3.0
"""Seconds for which a node is marked offline to recover a lost message; a run asks for replies every 0.3 s."""
DOUBT = 5.0
"""Seconds for which a site that asks is given nothing until what it was asked counts as lost, where that may be."""


class LostMessageRecovery:
    """Tracks which sites are connected, by their requests, and recovers the messages that they lost.

    `ask(request, body, path)` sends a body to a path of the SuperLink, with the headers of a site's request.
    """

    def __init__(
        self,
        sites: Iterable[str],
        ask: Callable[[Request, list[bytes], str], Awaitable[Reply]],
    ) -> None:
        self.ask = ask
        self.nodes: dict[str, int] = {}
        """By site, the node that has asked for messages, and has not said that it ends."""
        self.last_seen = dict.fromkeys(sites, 0.0)
        """When a site last did anything but begin."""
        self.away = set[str]()
        self.uncertain = set(self.last_seen)
        """Sites whose message may be lost that the SuperLink has given out: with the former gateway, or on its way."""

    def join(self, site: str) -> None:
        """Track a site that has come to the federation while the gateway runs."""
        self.last_seen[site] = 0.0
        self.uncertain.add(site)

    def is_doubtful(self, site: str, seconds: float) -> bool:
        """Return whether a site's message counts as lost, after the site has asked for so long and got nothing."""
        return site in self.uncertain and seconds > DOUBT

    async def end_former(self, request: Request, site: str) -> None:
        """Mark a site's former SuperNode offline if it is silent and has not deactivated itself.

        flwr takes it for online for up to a minute, and refuses its successor meanwhile; one that comes just then would
        leave a round waiting for what nobody will answer.
        """
        if site in self.nodes and time.monotonic() - self.last_seen[site] > SILENCE:
            await self.mark_offline(request, site, self.nodes.pop(site))

    async def recover_lost(self, request: Request, site: str) -> None:
        """Have flwr answer the lost message of a connected site: mark its node offline, then activate it again."""
        self.uncertain.discard(site)
        await self.mark_offline(request, site, self.nodes[site])
        key = b64decode(request.headers[FLEET_HTTP_PUBLIC_KEY_HEADER])
        activation = ActivateNodeRequest(
            public_key=key,
            heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL,
        )
        await self.ask(request, [activation.SerializeToString()], BEGIN)

    async def mark_offline(self, request: Request, site: str, node: int) -> None:
        """Mark a site's node offline for OFFLINE_TIME seconds, during which its heartbeats are held back."""
        log.info("%s is away for %g s: what it was asked may be lost", site, OFFLINE_TIME)
        self.away.add(site)
        try:
            ending = DeactivateNodeRequest(node_id=node)
            await self.ask(request, [ending.SerializeToString()], END)
            await asyncio.sleep(OFFLINE_TIME)
        finally:
            self.away.discard(site)

    async def ended(self, site: str) -> None:
        """Return once a site's node is no longer marked offline."""
        while site in self.away:
            await asyncio.sleep(0.1)
