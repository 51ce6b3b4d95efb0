"""What one site, one address and all of them together may take of the gateway: the limits of coordinator.toml.

A limit either refuses (connections, headers, bodies, requests at a time) or lets wait (requests per second). Waiting is
the kinder one: flwr's SuperNode repeats a request that gets 503 and ends at one that gets 429.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from ipaddress import IPv6Address, ip_address

from data.toml_file import Table

Clock = Callable[[], float]
PREFIX = 64
"""Bits of an IPv6 address that count: a network's owner has all addresses below them."""
REMEMBERED = 1024
"""Names whose allowance is remembered before those that are whole again are dropped."""


@dataclass(frozen=True)
class Limits:
    """The gateway's limits. Two hundred sites behind one address stay within the defaults."""

    connections: int = 4096
    """Connections in all."""
    connections_per_address: int = 2048
    """Connections from one address. Two hundred SuperNodes have ten each at most."""
    connections_per_site: int = 64
    """Connections on which a site has signed a request."""
    new_connections_per_second: int = 100
    """Connections that begin from one address; ten times as many at once. A handshake is 3 ms of the gateway's work."""
    header_seconds: int = 20
    """Seconds for a TLS handshake, and for a request's head on a connection."""
    body_seconds: int = 300
    """Seconds for the body of a request, and for what is waiting to be sent of an answer."""
    least_bytes_per_second: int = 1024
    """Rate of a body, on average, after its first seconds."""
    requests_at_a_time: int = 32
    """Requests of a site. flwr's SuperNode has fewer than ten: a question, a sign of life and a few objects."""
    requests_per_second: int = 10
    """Requests of a site that go before others; ten times as many at once. More wait until no other site is at work."""


LIMIT_KEYS = tuple(field.name.replace("_", "-") for field in fields(Limits))
"""The keys of coordinator.toml."""


def read_limits(table: Table) -> Limits:
    """Return the limits of coordinator.toml. Raises DataError for one that is no number, or below 1."""
    usual = Limits()
    stated: dict[str, int] = {}
    for key in LIMIT_KEYS:
        name = key.replace("-", "_")
        stated[name] = table.take(key, int, getattr(usual, name))
        table.require(stated[name] > 0, key, "must be at least 1")
    limits = Limits(**stated)
    rule = f"must be at most connections = {limits.connections}"
    fits = limits.connections_per_address <= limits.connections
    if "connections-per-address" not in table.entries and not fits:
        stated["connections_per_address"] = limits.connections
        return Limits(**stated)
    table.require(fits, "connections-per-address", rule)
    return limits


class Allowance:
    """So many units a second, and so many at once. More may be taken than there is, down to a debt."""

    def __init__(self, rate: float, most: float, debt: float, clock: Clock) -> None:
        self.rate = rate
        self.most = most
        self.debt = debt
        self.clock = clock
        self.at = clock()
        self.left = most

    def refill(self) -> float:
        """Return the units that are left by now; fewer than none where there is a debt."""
        now = self.clock()
        self.left = min(self.most, self.left + (now - self.at) * self.rate)
        self.at = now
        return self.left

    def take(self, units: float = 1.0) -> float:
        """Take units, also those that are not there yet, and return the seconds until they are."""
        self.left = max(-self.debt, self.refill() - units)
        return max(0.0, -self.left / self.rate)

    def seconds_until(self, units: float = 1.0) -> float:
        """Return the seconds until so many units are left."""
        return max(0.0, (units - self.refill()) / self.rate)


class Allowances:
    """An allowance for each name: a site or an address."""

    def __init__(
        self, rate: float, most: float, debt: float, clock: Clock = time.monotonic
    ) -> None:
        self.rate = rate
        self.most = most
        self.debt = debt
        self.clock = clock
        self.by_name: dict[str, Allowance] = {}

    def of(self, name: str) -> Allowance:
        """Return the allowance of a name, whole for one that was never seen."""
        if name not in self.by_name:
            if len(self.by_name) >= REMEMBERED:
                self.forget()
            self.by_name[name] = Allowance(self.rate, self.most, self.debt, self.clock)
        return self.by_name[name]

    def forget(self) -> None:
        """Drop the allowances that are whole again: a new one is no other."""
        used = {name: one for name, one in self.by_name.items() if one.refill() < self.most}
        self.by_name = used


def address_of(host: str) -> str:
    """Return what counts as one address: that of IPv4, the network's of IPv6."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    spare = 128 - PREFIX
    return f"{IPv6Address(int(address) >> spare << spare)}/{PREFIX}"
