"""Which node computes for which client: any node in a simulation, and between hospitals each site for itself."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence

from data.agreement import Agreement, as_flower_has_it
from data.text import LineSink
from strategies.core.exchange import LATE_SECONDS, Grid, NodeAssignment, assign
from strategies.core.exchange_settings import ExchangeSettings

INTERVAL = 0.3
"""Seconds between two looks for a site that is not connected."""
MOST_NAMES = 20
"""Clients that a sentence names."""
log = logging.getLogger("fedskew")


class AnyNodeAssigner:
    """Any connected node computes for any client: a simulation."""

    absent: Mapping[int, str] = {}
    names: Sequence[str] = ()

    def assign(
        self,
        grid: Grid,
        clients: Sequence[int],
        settings: ExchangeSettings,
    ) -> NodeAssignment:
        """Return the clients spread evenly over the nodes."""
        return assign(grid, clients, settings)

    def waits_for(self, clients: Sequence[int], seconds: float, timeout: float) -> None:
        """Log that replies of these clients are still missing after so many seconds of `timeout`."""
        log.warning(waiting_line(listed(map(str, clients), "client"), seconds, timeout))

    def waits_no_more(self) -> None:
        """Do nothing: a line of a log cannot be taken back."""


class SiteAssigner:
    """Each site's node computes for that site alone. The public key identifies it, as names in flwr are not unique.

    An absent site is waited for once, then left out at once, and asked again as soon as it is back.
    """

    def __init__(self, agreement: Agreement, report_line: LineSink = lambda line: None) -> None:
        """`report_line` gets for whom an exchange waits, once that is long, and "" when it waits no more."""
        self.names: Sequence[str] = agreement.names
        self.report_line = report_line
        self.clients: dict[bytes, int] = {}
        """Each site's number by its public key."""
        for number, site in enumerate(agreement.sites):
            self.clients[as_flower_has_it(site.key)] = number
        self.absent: Mapping[int, str] = {}
        """Why a site is not asked."""

    def assign(
        self,
        grid: Grid,
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
                who = listed([self.names[client] for client in sorted(missing)], "site")
                left = began + settings.node_wait - now
                self.report_line(f"waiting for {who} to connect, {left:.0f} s more (node-wait)")
            time.sleep(INTERVAL)
        self.waits_no_more()
        for client in sorted(missing):
            name = self.names[client]
            log.warning("site %s is not connected after %g s", name, settings.node_wait)
        away = (self.absent.keys() | missing) - nodes.keys()
        self.absent = {client: absence_of(self.names[client]) for client in sorted(away)}
        return {nodes[client]: [client] for client in clients if client in nodes}

    def waits_for(self, clients: Sequence[int], seconds: float, timeout: float) -> None:
        """Say by name which sites have not replied after so many seconds of `timeout`."""
        names = [self.names[client] for client in clients]
        line = waiting_line(listed(names, "site"), seconds, timeout)
        log.warning(line)
        self.report_line(line)

    def waits_no_more(self) -> None:
        """Take back what `waits_for` said."""
        self.report_line("")

    def connected(self, grid: Grid) -> dict[int, int]:
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


def listed(names: Iterable[str], noun: str) -> str:
    """Return some names as a list of at most MOST_NAMES, after "site" or "sites"."""
    names = list(names)
    shown = ", ".join(names[:MOST_NAMES])
    more = len(names) - MOST_NAMES
    if more > 0:
        shown += f" and {more} more"
    if len(names) > 1:
        noun += "s"
    return f"{noun} {shown}"


def waiting_line(who: str, seconds: float, timeout: float) -> str:
    """Return the sentence about replies that are late."""
    return f"waiting for {who} since {seconds:.0f} s; left out after timeout = {timeout:g} s"
