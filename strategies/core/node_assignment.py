"""Which node computes for which client: in a simulation any for any, between hospitals each site for itself."""

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Gt, Le

from data import Settings
from data.agreement import Agreement, as_flower_has_it
from data.text import LineSink

if TYPE_CHECKING:  # settings are read without flwr
    from flwr.serverapp import Grid

NodeAssignment = Mapping[int, Sequence[int]]
"""By node id, the clients that the node computes for."""
INTERVAL = 0.3
"""Seconds between two looks for a site that is not connected."""
LATE_SECONDS = 55.0
"""Seconds after which missing replies are reported for the first time; then again after 2, 4, 8, ... times as many.

A little less than the minute after which a run must have said something: flwr, the gateway and `fedskew federation run`
ask in turn.
"""
MOST_NAMES = 20
"""Clients that a sentence names."""
log = logging.getLogger("fedskew")


@dataclass(frozen=True)
class ExchangeSettings(Settings):
    """How the server reaches its clients."""

    nodes: Annotated[int, Ge(1), Le(1_000_000)] = 1
    """Connected nodes to wait for before a round; in a simulation any node runs any client."""
    node_wait: Annotated[float, Ge(0)] = 90.0
    """Seconds to wait for the nodes; then the run fails. flwr refuses a killed node's successor for up to 60 s."""
    timeout: Annotated[float, Gt(0)] = 3600.0
    """Seconds to wait for the replies of a round; the missing ones count as failures."""
    min_reply_share: Annotated[float, Gt(0), Le(1)] = 1.0
    """Share of the asked clients that must send a valid reply, 1 is all of them; with fewer the run stops and keeps its
    checkpoint. Between sites, min-sites of federation.toml replaces it."""


class TooFewNodes(TimeoutError):
    """Fewer nodes are connected than the setting nodes demands."""


def wait_for_nodes(grid: "Grid", settings: ExchangeSettings) -> list[int]:
    """Return the sorted ids of the connected nodes, once there are at least `settings.nodes`.

    Raises TooFewNodes when fewer are connected after `settings.node_wait` seconds.
    """
    deadline = time.monotonic() + settings.node_wait
    while True:
        nodes = sorted(grid.get_node_ids())
        if len(nodes) >= settings.nodes:
            return nodes
        if time.monotonic() > deadline:
            connected = f"{len(nodes)} of {settings.nodes} nodes connected"
            wait = f"{settings.node_wait:g} s"
            raise TooFewNodes(f"{connected} after {wait}: start more, or lower nodes")
        time.sleep(0.05)


class NodeAssigner:
    """Decides which node computes for which client: here, as in a simulation, any node for any client."""

    absent: Mapping[int, str] = {}
    """By client, why it cannot be asked at present."""
    names: Sequence[str] = ()
    """The clients' names between sites; empty in a simulation."""

    def __init__(self, report_line: LineSink = lambda line: None) -> None:
        """`report_line` gets for whom an exchange waits, once that is long, and "" when it waits no more."""
        self.report_line = report_line

    def listed(self, clients: Collection[int]) -> str:
        """Return how a sentence names clients, or sites, at most MOST_NAMES of them."""
        shown = [self.names[client] if self.names else str(client) for client in sorted(clients)]
        noun = "site" if self.names else "client"
        if len(shown) > 1:
            noun += "s"
        if len(shown) > MOST_NAMES:
            shown[MOST_NAMES:] = [f"and {len(shown) - MOST_NAMES} more"]
        return f"{noun} {', '.join(shown)}"

    def assign(
        self,
        grid: "Grid",
        clients: Sequence[int],
        settings: ExchangeSettings,
    ) -> NodeAssignment:
        """Return which node computes for which of `clients`; a client that cannot be asked has no node."""
        nodes = wait_for_nodes(grid, settings)[: len(clients)]
        return {node: clients[first :: len(nodes)] for first, node in enumerate(nodes)}


class SiteAssigner(NodeAssigner):
    """Each site's node computes for that site alone. The public key identifies it, as names in flwr are not unique.

    An absent site is waited for once, then left out at once, and asked again as soon as it is back.
    """

    def __init__(self, agreement: Agreement, report_line: LineSink = lambda line: None) -> None:
        super().__init__(report_line)
        self.names = agreement.names
        self.clients: dict[bytes, int] = {}
        """Each site's number by its public key."""
        for number, site in enumerate(agreement.sites):
            self.clients[as_flower_has_it(site.key)] = number

    def assign(
        self,
        grid: "Grid",
        clients: Sequence[int],
        settings: ExchangeSettings,
    ) -> NodeAssignment:
        """Return the node of each client whose site is connected."""
        began = time.monotonic()
        due = began
        while True:
            nodes = self.connected(grid)
            missing = set(clients) - nodes.keys() - self.absent.keys()
            now = time.monotonic()
            if not missing or now > began + settings.node_wait:
                break
            if now >= due:
                due = now + LATE_SECONDS
                left = began + settings.node_wait - now
                who = self.listed(missing)
                self.report_line(f"waiting for {who} to connect, {left:.0f} s more (node-wait)")
            time.sleep(INTERVAL)
        self.report_line("")
        for client in sorted(missing):
            name = self.names[client]
            log.warning("site %s is not connected after %g s", name, settings.node_wait)
        away = (self.absent.keys() | missing) - nodes.keys()
        self.absent = {client: absence_of(self.names[client]) for client in sorted(away)}
        return {nodes[client]: [client] for client in clients if client in nodes}

    def connected(self, grid: "Grid") -> dict[int, int]:
        """Return the nodes of the connected sites, by client; other nodes are left out."""
        node_of_key = {bytes(node.public_key): node.node_id for node in grid.get_nodes()}
        connected = {}
        for key, client in self.clients.items():
            if key in node_of_key:
                connected[client] = node_of_key[key]
        return connected


def absence_of(name: str) -> str:
    """Return why a site that is not connected was left out."""
    return f"site {name} is not connected"


def is_absence_of(name: str, failure: str) -> bool:
    """Return whether a site was left out because it was not connected.

    Args:
        name: Of the site.
        failure: Why it was left out, as a round's record has it: `absence_of`, perhaps after the question.
    """
    absence = absence_of(name)
    return failure == absence or failure.endswith(f": {absence}")
