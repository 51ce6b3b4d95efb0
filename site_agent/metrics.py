"""`/metrics` in Prometheus' text format, on loopback, from the audit log and the disk."""

import json
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from site_agent.audit import Audit
from site_agent.supernode import end_with_parent


def metrics(lines: Iterable[bytes], free: int) -> str:
    """Return the metrics of an audit log's lines, and of the bytes free on its disk."""
    events: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    sent, last = 0, 0.0
    for entry in map(json.loads, lines):
        events[entry["event"]] += 1
        sent += sum(row["bytes"] for row in entry.get("left", []))
        if "kind" in entry:
            last = datetime.fromisoformat(entry["time"]).timestamp()
            seconds[entry["kind"].partition(".")[0]] += entry.get("seconds", 0.0)
    rows = [
        f'fedskew_site_events_total{{event="{name}"}} {count}'
        for name, count in sorted(events.items())
    ]
    rows += [
        f'fedskew_site_seconds_total{{kind="{name}"}} {total:.3f}'
        for name, total in sorted(seconds.items())
    ]
    rows += [
        f"fedskew_site_sent_bytes_total {sent}",
        f"fedskew_site_last_exchange_timestamp_seconds {last:.3f}",
    ]
    return "\n".join([*rows, f"fedskew_site_disk_free_bytes {free}", ""])


def serve(state: Path, port: int, parent: int) -> None:
    """Answer until the parent ends."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent(parent, signal.SIGKILL)
    server(
        port, lambda: metrics(Audit(state / "audit.jsonl").lines(), shutil.disk_usage(state).free)
    ).serve_forever()


def server(port: int, text: Callable[[], str]) -> HTTPServer:
    """Return a server on loopback that says at /metrics what `text` returns at that time."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/metrics"
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text().encode() if known else b"")

        def log_message(self, format: str, *words: object) -> None:
            pass

    return HTTPServer(("127.0.0.1", port), Handler)
