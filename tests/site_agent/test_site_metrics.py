"""A site's metrics are what its audit log says, as Prometheus reads it."""

import json
import shutil
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from site_agent.metrics import SiteMetrics


class Scraped:
    """The metrics of a site, as a Prometheus server reads them time and again."""

    def __init__(self, state: Path) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(SiteMetrics(state))

    def families(self) -> list[Metric]:
        """Return what one scrape gives."""
        return [*text_string_to_metric_families(generate_latest(self.registry).decode())]

    def values(self) -> dict[str, float]:
        """Return the value of every series."""
        values = {}
        for family in self.families():
            for sample in family.samples:
                labels = ",".join(f"{key}={value}" for key, value in sample.labels.items())
                values[f"{sample.name}{{{labels}}}"] = sample.value
        return values


def read(state: Path) -> tuple[dict[str, float], dict[str, str]]:
    """Return every series' value, and every metric's type."""
    scraped = Scraped(state)
    return scraped.values(), {family.name: family.type for family in scraped.families()}


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


def test_a_scrape_reads_the_lines_that_are_new(tmp_path: Path) -> None:
    entries = [{"event": f"event-{number}"} for number in range(3)]
    log = tmp_path / "audit.jsonl"
    write_log(tmp_path, *entries[:2])
    scraped = Scraped(tmp_path)
    counts = {f"fedskew_site_events_total{{event=event-{number}}}": 1 for number in range(3)}
    scraped.values()
    with log.open("r+b") as file:  # what was counted is not read again
        file.write(b"-" * 5)
    with log.open("a") as file:
        file.write(json.dumps(entries[2]) + "\n")
    assert counts.items() <= scraped.values().items()


@pytest.mark.parametrize("entries", [1, 5])
def test_another_log_in_its_place_is_counted_from_its_first_line(
    tmp_path: Path, entries: int
) -> None:
    """As after a restore from a backup, whether it is shorter or longer."""
    write_log(tmp_path, *[{"event": "before"}] * 3)
    scraped = Scraped(tmp_path)
    scraped.values()
    (tmp_path / "audit.jsonl").rename(tmp_path / "kept")
    write_log(tmp_path, *[{"event": "after"}] * entries)
    values = scraped.values()
    assert values["fedskew_site_events_total{event=after}"] == entries
    assert "fedskew_site_events_total{event=before}" not in values
