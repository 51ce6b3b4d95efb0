"""A site's metrics are what its audit log says, as Prometheus reads it."""

import json
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from site_agent.service import SiteMetrics


class Scraped:
    """The metrics of a site, as a Prometheus server reads them time and again."""

    def __init__(self, state: Path) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(SiteMetrics(state))

    def values(self) -> dict[str, float]:
        """Return the value of every series, without the room on the disk."""
        values = {}
        for family in text_string_to_metric_families(generate_latest(self.registry).decode()):
            for sample in family.samples:
                labels = ",".join(f"{key}={value}" for key, value in sample.labels.items())
                values[f"{sample.name.removeprefix('fedskew_site_')}{{{labels}}}"] = sample.value
        assert values.pop("disk_free_bytes{}") > 0
        return values


def lines(*entries: dict[str, object]) -> str:
    return "".join(json.dumps(entry) + "\n" for entry in entries)


def test_events_seconds_and_bytes_of_lines_are_summed_and_a_coordinator_makes_no_series(
    tmp_path: Path,
) -> None:
    """It chooses the messages' types, and each label's value is a series that Prometheus keeps."""
    log, scraped = tmp_path / "audit.jsonl", Scraped(tmp_path)
    assert scraped.values() == {"sent_bytes_total{}": 0, "last_exchange_timestamp_seconds{}": 0}
    rows = [{"name": "0/model", "bytes": 100, "norm": 1.0}, {"name": "0/metrics", "bytes": 10}]
    answered = {"event": "answered", "kind": "train", "seconds": 1.5, "left": rows}
    refused = {"event": "refused", "time": "2026-01-01T00:00:20+00:00", "seconds": 1.0}
    log.write_text(
        lines(
            {"event": "started"},
            answered | {"time": "2026-01-01T00:00:00+00:00"},
            answered | {"time": "2026-01-01T00:00:10+00:00", "kind": "query.x", "seconds": 0.25},
            *(refused | {"kind": f"made-up-{number}"} for number in range(3)),
        )
    )
    expected = {
        "events_total{event=answered}": 2,
        "events_total{event=refused}": 3,
        "events_total{event=started}": 1,
        "seconds_total{kind=query}": 0.25,
        "seconds_total{kind=train}": 1.5,
        "seconds_total{kind=other}": 3,
        "sent_bytes_total{}": 220,
        "last_exchange_timestamp_seconds{}": 1767225620,
    }
    assert scraped.values() == expected
    with log.open("ab") as file:  # half a line does not count yet
        file.write(lines({"event": "started"}).encode() + b'{"event": "st')
    assert scraped.values() == expected | {"events_total{event=started}": 2}
