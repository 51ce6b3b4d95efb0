"""A site's Prometheus metrics, on loopback, from the audit log and the disk."""

import json
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from multiprocessing import parent_process
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from site_agent.audit import NO_ENTRY, complete_lines

KINDS = ("train", "evaluate", "query")
"""The message types that a label names. Any other is `other`: the coordinator chooses what a message is called."""


class SiteMetrics(Collector):
    """Counts what a site's audit log says."""

    def __init__(self, state: Path) -> None:
        """`state` is the site's state folder, with the log."""
        self.state = state

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the log as it is now, and of its disk."""
        events: Counter[str] = Counter()
        seconds: Counter[str] = Counter()
        sent, last = 0, 0.0
        for line in complete_lines(self.state / "audit.jsonl"):
            with suppress(*NO_ENTRY):  # `fedskew-site log --verify` names such a line
                entry = json.loads(line)
                size = sum(row["bytes"] for row in entry.get("left", []))
                events[str(entry["event"])] += 1
                sent += size
                if "kind" in entry:
                    kind = entry["kind"].partition(".")[0]
                    seconds[kind if kind in KINDS else "other"] += entry.get("seconds", 0.0)
                    last = datetime.fromisoformat(entry["time"]).timestamp()

        for name, text, label, totals in (
            ("events", "Lines of the audit log by event.", "event", events),
            ("seconds", "Seconds of answering by message type.", "kind", seconds),
        ):
            family = CounterMetricFamily(f"fedskew_site_{name}", text, labels=[label])
            for value, total in sorted(totals.items()):
                family.add_metric([value], total)
            yield family
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
