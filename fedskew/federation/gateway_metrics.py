"""The gateway's traffic by site: `/metrics` in Prometheus' text format."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable

ONLINE = 60.0
"""Seconds after its last request for which a site counts as online: it asks for messages and sends a heartbeat."""
CALLS = "/v1/fleet/"


class Traffic:
    """Requests, bytes and seconds of each site, and what was refused."""

    def __init__(self, sites: Iterable[str]) -> None:
        self.last = dict.fromkeys(sites, 0.0)
        self.bytes: Counter[tuple[str, str]] = Counter()
        """By site and direction."""
        self.seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
        """By site and call; a question for messages is held until there is one."""
        self.requests: Counter[tuple[str, int]] = Counter()
        """By site and status of the answer; what no site of the agreement has signed is unknown's."""

    def add(
        self, site: str | None, path: str, status: int, received: int, sent: int, seconds: float
    ) -> None:
        """Count a request: its path, the status of the answer, the bytes of both and the seconds between them."""
        self.requests[site or "unknown", status] += 1
        if site is not None:
            self.last[site] = time.time()
            self.bytes[site, "received"] += received
            self.bytes[site, "sent"] += sent
            if path.startswith(CALLS) and status < 400:
                self.seconds[site, path.removeprefix(CALLS)] += seconds

    def text(self, free: int) -> str:
        """Return the metrics as they are now, with the bytes free on the disk of the coordinator's state."""
        now, rows = time.time(), [f"fedskew_gate_disk_free_bytes {free}"]
        for site, last in self.last.items():
            rows.append(f'fedskew_gate_site_online{{site="{site}"}} {int(now - last < ONLINE)}')
            rows.append(f'fedskew_gate_last_request_timestamp_seconds{{site="{site}"}} {last:.3f}')
        for (site, status), count in sorted(self.requests.items()):
            rows.append(f'fedskew_gate_requests_total{{site="{site}",status="{status}"}} {count}')
        for (site, direction), count in sorted(self.bytes.items()):
            rows.append(f'fedskew_gate_{direction}_bytes_total{{site="{site}"}} {count}')
        for (site, call), took in sorted(self.seconds.items()):
            rows.append(f'fedskew_gate_seconds_total{{site="{site}",call="{call}"}} {took:.3f}')
        return "\n".join([*rows, ""])
