"""Who plays which client: any node any of them in a simulation, and between hospitals each site its own."""

import logging
import time
from collections.abc import Mapping, Sequence

from data.sources.agreement import Agreement, as_flower_has_it
from strategies.exchange import Dealt, ExchangeSettings, Grid, deal

INTERVAL = 0.3
"""Seconds between two looks for a site that is not connected."""
log = logging.getLogger("fedskew")


class AnyNode:
    """Any connected node plays any client: a simulation."""

    absent: Mapping[int, str] = {}

    def deal(self, grid: Grid, clients: Sequence[int], settings: ExchangeSettings) -> Dealt:
        """Return the clients dealt out among the nodes."""
        return deal(grid, clients, settings)


class SiteNodes:
    """Each site's node plays that site alone; it is known by its public key, as names in flwr are not unique.

    An absent site is waited for once, then left out at once, and asked again as soon as it is back.
    """

    def __init__(self, agreement: Agreement) -> None:
        self.names = agreement.names
        self.clients = {
            as_flower_has_it(site.key): number for number, site in enumerate(agreement.sites)
        }
        self.absent: Mapping[int, str] = {}
        """Why a site is not asked."""

    def deal(self, grid: Grid, clients: Sequence[int], settings: ExchangeSettings) -> Dealt:
        """Return the node of each client whose site is connected."""
        deadline = time.monotonic() + settings.node_wait
        while missing := set(clients) - (nodes := self.connected(grid)).keys() - self.absent.keys():
            if time.monotonic() > deadline:
                break
            time.sleep(INTERVAL)
        for client in sorted(missing):
            log.warning(
                "site %s is not connected after %g s", self.names[client], settings.node_wait
            )
        away = (self.absent.keys() | missing) - nodes.keys()
        self.absent = {
            client: f"site {self.names[client]} is not connected" for client in sorted(away)
        }
        return {nodes[client]: [client] for client in clients if client in nodes}

    def connected(self, grid: Grid) -> dict[int, int]:
        """Return the nodes of the sites that are connected, by client; any other node is nobody's."""
        keys = {bytes(node.public_key): node.node_id for node in grid.get_nodes()}
        return {client: keys[key] for key, client in self.clients.items() if key in keys}
