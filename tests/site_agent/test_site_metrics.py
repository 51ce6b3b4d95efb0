"""A site's metrics are what its audit log says, as Prometheus reads it."""

import json
import shutil
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from site_agent.metrics import SiteMetrics


def read(state: Path) -> tuple[dict[str, float], dict[str, str]]:
    """Return every series' value, and every metric's type, as a Prometheus server reads them."""
    registry = CollectorRegistry()
    registry.register(SiteMetrics(state))
    values, types = {}, {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        types[family.name] = family.type
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sample.labels.items())
            values[f"{sample.name}{{{labels}}}"] = sample.value
    return values, types


def write_log(state: Path, *entries: dict[str, object]) -> None:
    lines = [json.dumps(entry) + "\n" for entry in entries]
    (state / "audit.jsonl").write_text("".join(lines))


def test_events_seconds_and_bytes_are_summed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=7))
    rows = [{"name": "0/model", "bytes": 100, "norm": 1.0}, {"name": "0/metrics", "bytes": 10}]
    answered = {"event": "answered", "kind": "train", "seconds": 1.5, "left": rows}
    write_log(
        tmp_path,
        {"event": "started"},
        answered | {"time": "2026-01-01T00:00:00+00:00"},
        answered | {"time": "2026-01-01T00:00:10+00:00", "kind": "query.x", "seconds": 0.25},
        {"event": "refused", "kind": "train", "time": "2026-01-01T00:00:20+00:00"},
    )
    values, types = read(tmp_path)
    assert values == {
        "fedskew_site_events_total{event=answered}": 2,
        "fedskew_site_events_total{event=refused}": 1,
        "fedskew_site_events_total{event=started}": 1,
        "fedskew_site_seconds_total{kind=query}": 0.25,
        "fedskew_site_seconds_total{kind=train}": 1.5,
        "fedskew_site_sent_bytes_total{}": 220,
        "fedskew_site_last_exchange_timestamp_seconds{}": 1767225620,
        "fedskew_site_disk_free_bytes{}": 7,
    }
    assert types == {
        "fedskew_site_events": "counter",
        "fedskew_site_seconds": "counter",
        "fedskew_site_sent_bytes": "counter",
        "fedskew_site_last_exchange_timestamp_seconds": "gauge",
        "fedskew_site_disk_free_bytes": "gauge",
    }


def test_a_coordinator_cannot_make_series(tmp_path: Path) -> None:
    """It chooses the messages' types, and each label's value is a series that Prometheus keeps."""
    refused = {"event": "refused", "time": "2026-01-01T00:00:00+00:00", "seconds": 1.0}
    write_log(tmp_path, *(refused | {"kind": f"made-up-{number}"} for number in range(50)))
    values, _ = read(tmp_path)
    assert [name for name in values if "kind" in name] == ["fedskew_site_seconds_total{kind=other}"]
    assert values["fedskew_site_seconds_total{kind=other}"] == 50


def test_a_log_of_nothing_has_metrics(tmp_path: Path) -> None:
    assert read(tmp_path)[0]["fedskew_site_sent_bytes_total{}"] == 0
