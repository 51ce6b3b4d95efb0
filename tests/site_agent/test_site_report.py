"""`fedskew-site report`, what each line of the audit log says of its run, and syslog."""

import json
import logging
import socket
from pathlib import Path
from typing import Any

import pytest

from data import DataError
from site_agent.audit import Audit
from site_agent.config import Site, read_site
from site_agent.report import report
from site_agent.run_facts import facts_of, round_of
from tests.site_files import site_entries, site_folders, write

SETTINGS = json.dumps({"folder": "sites-chest-fedshift-seed0-1f", "variants": {"logit-shift": {}}})


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = read_site(site_folders(tmp_path / "sites") / "north/site.toml")
    site.state.mkdir()
    return site


def dated(
    monkeypatch: pytest.MonkeyPatch, audit: Audit, day: str, event: str, **entry: Any
) -> None:
    """Write a line of another day."""

    class Clock:
        @staticmethod
        def now(zone: object) -> Any:
            return type(
                "Moment", (), {"isoformat": lambda self, timespec: f"{day}T10:00:00.000+00:00"}
            )()

    with monkeypatch.context() as patch:
        patch.setattr("site_agent.audit.datetime", Clock)
        audit.write(event, **entry)


def month(site: Site, monkeypatch: pytest.MonkeyPatch) -> Audit:
    """Write a log of two months."""
    audit = site.audit
    facts = {"settings": "ab" * 32, "name": "sites-chest", "method": "logit-shift"}
    rows = [{"name": "0/model", "bytes": 4000, "norm": 1.5}, {"name": "0/metrics", "bytes": 90}]
    dated(
        monkeypatch,
        audit,
        "2026-10-31",
        "answered",
        run=7,
        kind="train",
        **facts,
        round=1,
        left=rows,
    )
    for number in (2, 3):
        dated(
            monkeypatch,
            audit,
            "2026-11-02",
            "answered",
            run=7,
            kind="train",
            **facts,
            round=number,
            left=rows,
        )
    failure = [{"name": "0/error", "bytes": 60, "why": "policy"}]
    dated(
        monkeypatch,
        audit,
        "2026-11-03",
        "answered",
        run=7,
        kind="train",
        **facts,
        round=4,
        left=failure,
    )
    dated(
        monkeypatch,
        audit,
        "2026-11-04",
        "refused",
        run=8,
        kind="train",
        why="the app | <b> is not approved",
    )
    dated(monkeypatch, audit, "2026-11-05", "summed", sum="class counts", words=10)
    return audit


def test_a_page_has_what_left_in_its_month_and_nothing_of_another(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = report(site, month(site, monkeypatch), "2026-11")
    assert "* 8,240 bytes left this site, in 3 answered messages" in page
    assert "* 1 messages were refused, 0 failed" in page
    assert "| sites-chest | logit-shift | abababababababab | 2 to 4 | 3 | 0 | 0 | 8,240 |" in page
    assert "| model | an update: the model after training here | 2 | 8,000 | 1.5 |" in page
    assert "| 2026-11-05T10:00:00 | summed | class counts | 10 |" in page
    assert "all of its 6 lines follow from each other, 5 are of this month" in page
    assert "| policy | 1 |" in page
    assert report(site, site.audit) == page  # the last entry's month


@pytest.mark.parametrize(
    ("record", "meaning"),
    [
        ("0/test/average", "scores on this site's test set"),
        ("0/upload/words", "numbers under masks that cancel in the sum of all sites"),
        ("0/upload/class-prior", "what the method of that name asks for"),
        ("arrays", ""),
    ],
)
def test_a_record_is_explained(
    site: Site, monkeypatch: pytest.MonkeyPatch, record: str, meaning: str
) -> None:
    rows = [{"name": record, "bytes": 8}]
    dated(monkeypatch, site.audit, "2026-11-02", "answered", run=7, kind="train", left=rows)
    name = record.removeprefix("0/")
    assert f"| {name} | {meaning} | 1 | 8 |" in report(site, site.audit)


def test_the_month_before_is_another_page(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    page = report(site, month(site, monkeypatch), "2026-10")
    assert "* 4,090 bytes left" in page and "| 1 to 1 | 1 | 0 | 0 |" in page
    assert "Nothing in this month." in page


def test_a_text_from_elsewhere_is_no_markup(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    page = report(site, month(site, monkeypatch), "2026-11")
    assert "| the app &#124; &#60;b&#62; is not approved | 1 |" in page and "<b>" not in page


def test_lines_of_earlier_versions_get_their_method_from_the_runs_settings(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = site.audit
    code = "cd" * 32
    dated(monkeypatch, audit, "2026-09-30", "run", run=7, settings=code, text=SETTINGS)
    dated(monkeypatch, audit, "2026-10-01", "answered", run=7, kind="train", settings=code, left=[])
    dated(monkeypatch, audit, "2026-10-01", "failed", run=6, kind="train", left=[], why="gone")
    page = report(site, audit, "2026-10")
    row = "| sites-chest-fedshift-seed0-1f | logit-shift | cdcdcdcdcdcdcdcd | not in the log | 1 | 0 | 0 | 0 |"
    assert row in page
    assert "| not in the log | not in the log | none | not in the log | 0 | 0 | 1 | 0 |" in page


@pytest.mark.parametrize("text", ["2026-13", "2026", "november", "2026-1", "2026-11-01"])
def test_what_is_no_month_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    audit = month(site, monkeypatch)
    with pytest.raises(DataError, match=rf"--month = '{text}': must be YYYY-MM"):
        report(site, audit, text)


def test_a_changed_log_makes_no_page(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = month(site, monkeypatch)
    audit.path.write_bytes(audit.path.read_bytes().replace(b"4000", b"4", 1))
    with pytest.raises(DataError, match="was changed"):
        report(site, audit, "2026-11")


def test_an_empty_log_has_no_month(site: Site) -> None:
    with pytest.raises(DataError, match="no entry"):
        report(site, site.audit)


def test_a_message_says_run_methods_and_round() -> None:
    assert facts_of(SETTINGS) == {
        "name": "sites-chest-fedshift-seed0-1f",
        "method": "logit-shift",
    }
    assert facts_of('{"folder": "a", "variants": {}}')["method"] == "plain training"
    assert round_of({"round": 3}) == {"round": 3}


@pytest.mark.parametrize(
    "text", ["", "no json", "[]", "7", '{"folder": "a"}', '{"variants": {}}', "[" * 10**5]
)
def test_settings_that_say_none_leave_the_line_as_it_was(text: str) -> None:
    assert facts_of(text) == {}


def test_a_run_id_that_is_none_is_left_out() -> None:
    text = json.dumps({"folder": "../../etc", "variants": {"x" * 10**4: 1}})
    assert facts_of(text) == {"method": "x" * 200}
    assert round_of({"round": True}) == round_of({"round": "3"}) == round_of({}) == {}


def test_each_line_goes_to_syslog_without_the_runs_settings(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(str(tmp_path / "log"))
        audit = Audit(tmp_path / "audit.jsonl", str(tmp_path / "log"))
        audit.write("run", run=7, settings="ab", text="a long text")
        received = daemon.recv(65536).decode()
    head, _, line = received.partition(" ")
    assert head == "<86>fedskew-site:"
    written = json.loads(audit.lines()[0])
    assert written.pop("text") == "a long text" and json.loads(line) == written


def test_it_goes_to_another_machine_by_udp(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as daemon:
        daemon.bind(("127.0.0.1", 0))
        Audit(tmp_path / "audit.jsonl", f"127.0.0.1:{daemon.getsockname()[1]}").write("started")
        assert b'"event": "started"' in daemon.recv(65536)


def test_a_syslog_that_is_not_there_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "fedskew.site"):
        audit = Audit(tmp_path / "audit.jsonl", str(tmp_path / "nobody"))
        audit.write("started")
    assert audit.verify() == 1 and "gets no lines" in caplog.text


@pytest.mark.parametrize("address", ["dev/log", "host", "host:", "host:0", "host:70000", ":514"])
def test_what_is_no_address_of_syslog_is_refused(tmp_path: Path, address: str) -> None:
    folder = site_folders(tmp_path / "sites") / "north"
    write(folder / "site.toml", site_entries(syslog=address))
    with pytest.raises(DataError, match=r"syslog = .*must be the path of a socket"):
        read_site(folder / "site.toml")
    write(folder / "site.toml", site_entries(syslog="log.example.org:514"))
    assert read_site(folder / "site.toml").audit.syslog == "log.example.org:514"
