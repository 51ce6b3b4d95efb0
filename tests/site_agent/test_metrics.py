"""Metrics are what the audit log says, in Prometheus' text form."""

import json

from site_agent.metrics import metrics


def test_events_seconds_and_bytes_are_summed() -> None:
    rows = [{"name": "0/model", "bytes": 100, "norm": 1.0}, {"name": "0/metrics", "bytes": 10}]
    answered = {"event": "answered", "kind": "train", "seconds": 1.5, "left": rows}
    entries = [
        {"event": "started"},
        answered | {"time": "2026-01-01T00:00:00+00:00"},
        answered | {"time": "2026-01-01T00:00:10+00:00", "kind": "query.x", "seconds": 0.25},
        {"event": "refused", "kind": "train", "time": "2026-01-01T00:00:20+00:00"},
    ]
    text = metrics([json.dumps(entry).encode() for entry in entries], 7)
    assert text.splitlines() == [
        'fedskew_site_events_total{event="answered"} 2',
        'fedskew_site_events_total{event="refused"} 1',
        'fedskew_site_events_total{event="started"} 1',
        'fedskew_site_seconds_total{kind="query"} 0.250',
        'fedskew_site_seconds_total{kind="train"} 1.500',
        "fedskew_site_sent_bytes_total 220",
        "fedskew_site_last_exchange_timestamp_seconds 1767225620.000",
        "fedskew_site_disk_free_bytes 7",
    ]


def test_a_log_of_nothing_has_metrics() -> None:
    assert "fedskew_site_sent_bytes_total 0" in metrics([], 0)
