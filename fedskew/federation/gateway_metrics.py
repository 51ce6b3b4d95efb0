"""The gateway's traffic by site: its Prometheus metrics."""

import shutil
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics

ONLINE = 60.0
"""Seconds after its last request for which a site counts as online: it asks for messages and sends a heartbeat."""
CALLS = "/v1/fleet/"
UNKNOWN = "unknown"
"""The site of a request that no site of the agreement has signed."""

# Else every counter has a second series, which says since when it counts.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Traffic:
    """Requests, bytes and seconds of each site, and what was refused.

    Labels are bounded: sites are those of the agreement and `unknown`, calls those that the gateway passes on, and a
    status is one of its own or of the SuperLink's answers.
    """

    def __init__(self, sites: Iterable[str], state: Path) -> None:
        """`state` is the coordinator's state folder, whose disk's free space is a metric."""
        self.registry = registry = CollectorRegistry()
        self.last: dict[str, float] = {}
        """By site, the time of its last request in seconds since 1970."""
        self.requests = Counter(
            "fedskew_gate_requests",
            "Requests by the status of their answer.",
            ["site", "status"],
            registry=registry,
        )
        self.received = Counter(
            "fedskew_gate_received_bytes",
            "Bytes of requests' bodies.",
            ["site"],
            registry=registry,
        )
        self.sent = Counter(
            "fedskew_gate_sent_bytes",
            "Bytes of answers' bodies.",
            ["site"],
            registry=registry,
        )
        self.seconds = Counter(
            "fedskew_gate_seconds",
            "Seconds between request and answer; a question for messages stays open for a while.",
            ["site", "call"],
            registry=registry,
        )
        self.refused = Counter(
            "fedskew_gate_refused",
            "Requests and connections that met a limit, by its key in coordinator.toml.",
            ["site", "limit"],
            registry=registry,
        )
        self.connections = Gauge(
            "fedskew_gate_connections",
            "Connections that are open.",
            registry=registry,
        )
        self.online = Gauge(
            "fedskew_gate_site_online",
            "Whether the site has asked for anything in the last minute.",
            ["site"],
            registry=registry,
        )
        self.last_request = Gauge(
            "fedskew_gate_last_request_timestamp_seconds",
            "Time of the site's last request, 0 for none.",
            ["site"],
            registry=registry,
        )
        for site in sites:
            self.join(site)
        disk = Gauge(
            "fedskew_gate_disk_free_bytes",
            "Bytes free on the disk of the coordinator's state.",
            registry=registry,
        )
        disk.set_function(lambda: shutil.disk_usage(state).free)

    def refuse(self, who: str, limit: str) -> None:
        """Count that a site, or an address on whose connection none has signed, has met a limit."""
        self.refused.labels(who if who in self.last else UNKNOWN, limit).inc()

    def join(self, site: str) -> None:
        """Show a site that belongs to the federation."""
        self.last[site] = 0.0
        self.online.labels(site).set_function(partial(self.is_online, site))
        self.last_request.labels(site).set_function(partial(self.last.__getitem__, site))

    def leave(self, site: str) -> None:
        """Show a site no longer that has left the federation; its counters stay."""
        self.online.remove(site)
        self.last_request.remove(site)

    def is_online(self, site: str) -> bool:
        """Return whether the site has sent a request lately."""
        return time.time() - self.last[site] < ONLINE

    def add(
        self,
        site: str | None,
        path: str,
        status: int,
        received: int,
        sent: int,
        seconds: float,
    ) -> None:
        """Count a request: its path, the status of the answer, the bytes of both and the seconds between them."""
        self.requests.labels(site or UNKNOWN, str(status)).inc()
        if site is None:
            return
        self.last[site] = time.time()
        self.received.labels(site).inc(received)
        self.sent.labels(site).inc(sent)
        if path.startswith(CALLS) and status < 400:  # other paths get 404, so calls are few
            self.seconds.labels(site, path.removeprefix(CALLS)).inc(seconds)
