"""A site's Prometheus metrics, on loopback, from the audit log and the disk."""

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from multiprocessing import parent_process
from pathlib import Path
from threading import Lock
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from site_agent.audit import NO_ENTRY, complete

KINDS = ("train", "evaluate", "query")
"""The message types that a label names. Any other is `other`: the coordinator chooses what a message is called."""


class SiteMetrics(Collector):
    """Counts what a site's audit log says. Every collection reads the lines that are new."""

    def __init__(self, state: Path) -> None:
        """`state` is the site's state folder, with the log."""
        self.state = state
        self.lock = Lock()  # two scrapes at a time are two threads
        self.begin(0)

    def begin(self, inode: int) -> None:
        """Count from the first line of the file of a number on its disk."""
        self.inode = inode
        self.position = 0
        """Where the lines end that are counted, in bytes."""
        self.events: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self.sent = 0
        self.last = 0.0

    def count_new_lines(self) -> None:
        """Count the lines that the log has more, or all where it is another file."""
        try:
            with (self.state / "audit.jsonl").open("rb") as log:
                status = os.fstat(log.fileno())
                if status.st_ino != self.inode or status.st_size < self.position:
                    self.begin(status.st_ino)
                log.seek(self.position)
                new = complete(log.read())
        except FileNotFoundError:
            self.begin(0)
            return
        self.position += len(new)
        for line in new.split(b"\n")[:-1]:
            with suppress(*NO_ENTRY):  # `fedskew-site log --verify` names such a line
                self.count(json.loads(line))

    def count(self, entry: dict[str, Any]) -> None:
        """Count an entry, or none of it."""
        event = str(entry["event"])
        sent = sum(row["bytes"] for row in entry.get("left", []))
        if "kind" in entry:
            last = datetime.fromisoformat(entry["time"]).timestamp()
            kind = entry["kind"].partition(".")[0]
            self.seconds[kind if kind in KINDS else "other"] += entry.get("seconds", 0.0)
            self.last = last
        self.events[event] += 1
        self.sent += sent

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the log as it is now, and of its disk."""
        with self.lock:
            self.count_new_lines()
            events, seconds = dict(self.events), dict(self.seconds)
            sent, last = self.sent, self.last

        logged = CounterMetricFamily(
            "fedskew_site_events", "Lines of the audit log by event.", labels=["event"]
        )
        for event, count in sorted(events.items()):
            logged.add_metric([event], count)
        yield logged

        taken = CounterMetricFamily(
            "fedskew_site_seconds", "Seconds of answering by message type.", labels=["kind"]
        )
        for kind, total in sorted(seconds.items()):
            taken.add_metric([kind], total)
        yield taken

        yield CounterMetricFamily(
            "fedskew_site_sent_bytes", "Bytes that have left the site.", value=sent
        )
        yield GaugeMetricFamily(
            "fedskew_site_last_exchange_timestamp_seconds",
            "Time of the last message that was answered or refused, 0 for none.",
            value=last,
        )
        yield GaugeMetricFamily(
            "fedskew_site_disk_free_bytes",
            "Bytes free on the disk of the site's state.",
            value=shutil.disk_usage(self.state).free,
        )


def serve(state: Path, port: int) -> None:
    """Answer until the parent of this process ends."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SiteMetrics(state))
    start_http_server(port, addr="127.0.0.1", registry=registry)
    if parent := parent_process():
        parent.join()
