"""`fedskew federation status`: who is ready, away or refuses, asked where no run goes on, else by its records."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import FedSkew

from fedskew.engines.processes import LaunchFailed
from fedskew.federation import status as status_module
from fedskew.federation.control import RunStatus
from fedskew.federation.folder import FederationFolder
from fedskew.federation.status import (
    AWAY,
    NOT_ASKED,
    READY,
    REFUSES,
    SiteStatus,
    recorded,
    site_status,
)
from server_app.record import RoundRecord
from server_app.run_folder import RunFolder
from server_app.run_settings import RunSettings
from server_app.settings import parse
from tests.site_files import NAMES, agreed, write


def record(round: int, **failures: str) -> RoundRecord:
    names = {NAMES.index(name): why for name, why in failures.items()}
    kept = [client for client in range(3) if client not in names]
    return RoundRecord.of({"round": round, "models": {}, "evaluated-by": "nobody", "loss": 1.0, "clients": kept,
                           "failures": names, "bytes-down": 1, "bytes-up": 1, "seconds": {}})  # fmt: skip


class SuperLink:
    """Answers as a SuperLink whose ServerApp writes these answers, if any."""

    def __init__(
        self, states: dict[str, str], going: list[dict[str, Any]], answers: dict[str, str] | None
    ) -> None:
        self.states, self.configs, self.answers = states, going, answers
        self.asked: dict[str, Any] = {}

    def away(self, agreement: Any) -> dict[str, str]:
        gone = [name for name in NAMES if self.states[name] != "online"]
        return dict.fromkeys(gone, "since 2026-11-22")

    def unfinished(self) -> list[dict[str, Any]]:
        return self.configs

    def submit(self, app: Path, config: dict[str, Any]) -> int:
        self.asked = config
        if self.answers is not None:
            Path(config["readiness"]).write_text(json.dumps(self.answers))
        return 7

    def status(self, number: int) -> RunStatus:
        return RunStatus("finished:failed", "ServerApp failed with exception: no room")


@pytest.fixture
def folder(tmp_path: Path) -> FederationFolder:
    write(tmp_path / "federation.toml", agreed(min_sites=2))
    write(tmp_path / "coordinator.toml", {"address": "localhost:8443", "superlink-port": 9})
    (tmp_path / "superlink").mkdir()
    return FederationFolder(tmp_path)


def superlink(
    monkeypatch: pytest.MonkeyPatch,
    online: str,
    going: list[dict[str, Any]],
    answers: dict[str, str] | None = None,
) -> SuperLink:
    """Put a SuperLink in place, at which these sites are online."""
    link = SuperLink(
        {name: "online" if name in online else "offline" for name in NAMES}, going, answers
    )
    monkeypatch.setattr(status_module, "Control", lambda folder: link)
    monkeypatch.setattr(status_module, "running", lambda folder, program: [])
    return link


def test_sites_are_asked_where_no_run_goes_on(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {
        "north": "",
        "east": "policy: class-counts 4",
        "south": "site south is not connected",
    }
    link = superlink(monkeypatch, "north east", [{"readiness": "another's question"}], answers)
    basis, sites = site_status(folder, {"method": "fedshift"})
    assert basis == "asked for method fedshift" and link.asked["node-wait"] == 0
    assert [str(sites[name]) for name in NAMES] == [
        "ready",
        "refuses policy: class-counts 4",
        "away since 2026-11-22",
    ]
    assert not list(folder.state.iterdir())


def test_a_lost_question_is_no_answer(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    superlink(monkeypatch, "north east", [])
    with pytest.raises(LaunchFailed) as failed:
        site_status(folder, {})
    assert "no room" in str(failed.value)


def settings_of_run(folder: FederationFolder) -> RunSettings:
    """The settings of a run of nine rounds."""
    results = folder.path / "results"
    return parse(
        {"dataset": f"sites:{folder.agreement_file}", "rounds": 9, "results": str(results)}
    )


def test_of_a_run_that_goes_on_its_records_say_it(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of_run(folder)
    link = superlink(monkeypatch, "north south", [settings.flat()])
    _, sites = site_status(folder, {})
    assert [sites[name].state for name in NAMES] == [NOT_ASKED, AWAY, NOT_ASKED]
    link.states["east"] = "online"
    settings.folder.mkdir(parents=True)
    RunFolder(settings.folder).add_round(record(1, east="data 3"))
    basis, sites = site_status(folder, {})
    assert basis == f"round 1 of {settings.run_id}, which goes on" and sites["east"] == SiteStatus(
        REFUSES, "data 3"
    )
    assert not link.asked


def test_a_site_that_goes_offline_in_a_round_is_away_before_the_round_ends(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is killed while it uploads was in the last round, and the SuperLink knows that it is gone."""
    settings = settings_of_run(folder)
    settings.folder.mkdir(parents=True)
    RunFolder(settings.folder).add_round(record(1, south="no reply"))
    superlink(monkeypatch, "north south", [settings.flat()])
    _, sites = site_status(folder, {})
    assert {name: str(status) for name, status in sites.items()} == {
        "north": "ready",
        "east": "away since 2026-11-22",
        "south": "away since round 1",
    }


def test_a_site_is_away_since_the_first_round_in_a_row_without_it(folder: FederationFolder) -> None:
    gone = {"east": "site east is not connected"}
    records = [record(1, **gone), record(2), record(3, **gone), record(4, **gone, south="no")]
    sites = recorded(folder.agreement, records)
    assert sites == {
        "north": SiteStatus(READY),
        "east": SiteStatus(AWAY, "since round 3"),
        "south": SiteStatus(REFUSES, "no"),
    }


@pytest.mark.parametrize("ready", [2, 0])
def test_the_exit_status_is_0_with_min_sites_ready(
    folder: FederationFolder,
    monkeypatch: pytest.MonkeyPatch,
    fedskew: FedSkew,
    ready: int,
) -> None:
    """Fewer than min-sites that are online are not asked."""
    answers = {name: "" if k < ready else "data 1" for k, name in enumerate(NAMES)}
    online = "north east south" if ready else "east"
    link = superlink(monkeypatch, online, [], answers)
    status, output, _ = fedskew("federation", "status", folder.path, "--json")
    assert (status == 0) == (ready == 2) and bool(link.asked) == bool(ready)
    states = {name: site["state"] for name, site in json.loads(output)["sites"].items()}
    assert states["south"] == (REFUSES if ready else AWAY)
    assert states["east"] == (READY if ready else NOT_ASKED)
