"""At the coordinator a run keeps the text that it began with, and `--former` begins one with the text before."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data import DataError
from data.agreement import read_agreement
from data.sites import agreement_of, file_of, text_file_of
from fedskew.federation import membership
from fedskew.federation import run as run_module
from fedskew.federation.folder import DATABASE, FederationFolder
from fedskew.federation.membership import former_agreement, former_texts, rename, update
from fedskew.federation.queue import RunQueue
from fedskew.federation.status import site_status
from server_app.run_folder import RunFolder
from server_app.settings import parse
from server_app.sites import keep_agreement
from site_agent.app_files import app_hash
from tests.command_line import FedSkew, fedskew
from tests.fedskew.federation.test_site_status import record, superlink
from tests.site_files import agreed, public_key, with_mask_keys, write

__all__ = ["fedskew"]
FOUR = with_mask_keys(("north", "east", "south", "west"))
HERE = {"client_app/app.py": b"app = 1\n"}
"""The app that is installed here."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FederationFolder:
    """A federation of four sites that agree to the app that is installed here."""
    monkeypatch.setattr(membership, "app_files", lambda path: HERE)
    monkeypatch.setattr("fedskew.federation.folder.app_files", lambda path: HERE)
    path = tmp_path / "chest"
    write(path / "federation.toml", agreed(site=FOUR, app=app_hash(HERE)))
    write(path / "coordinator.toml", {"address": "localhost:8443", "superlink-port": 9})
    (path / "superlink").mkdir()
    return FederationFolder(path)


def settings_of(folder: FederationFolder, **changes: Any) -> Any:
    stated = {"method": "fedavg", "results": str(folder.path / "results"), **changes}
    return parse({"dataset": f"sites:{folder.agreement_file}", **stated})


# ---- a run keeps its text --------------------------------------------------------------------------------------------


def test_a_run_finds_its_text_after_two_changes(folder: FederationFolder) -> None:
    before = settings_of(folder)
    former = folder.agreement
    rename(folder, "west", "far-west")
    rename(folder, "east", "far-east")
    again = parse(before.flat())
    assert again.agreement == former and again.run_id == before.run_id
    assert settings_of(folder).run_id != before.run_id
    results = RunFolder(again.folder)
    results.path.mkdir(parents=True)
    keep_agreement(again, results)
    assert read_agreement(results.agreement_file).sha256 == former.sha256


def test_a_text_that_was_never_agreed_to_is_refused(folder: FederationFolder) -> None:
    settings = settings_of(folder).flat()
    rename(folder, "west", "far-west")
    (kept,) = former_texts(folder)
    kept.write_text(kept.read_text() + "# changed\n")
    with pytest.raises(DataError, match=r"is not the federation\.toml that the run began with"):
        parse(settings).agreement  # noqa: B018


def test_the_agreed_module_stays_beside_federation_toml(folder: FederationFolder) -> None:
    """Its file is found by the folder of federation.toml, and its sha256 is compared in any case."""
    dataset = folder.dataset(folder.agreement.sha256)
    rename(folder, "west", "far-west")
    assert file_of(dataset) == folder.agreement_file.resolve()
    assert text_file_of(dataset).parent.name == "superseded"
    assert agreement_of(dataset).names[-1] == "west"


def test_a_run_that_goes_on_is_shown_with_its_own_sites(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(folder, rounds=9)
    settings.folder.mkdir(parents=True)
    RunFolder(settings.folder).add_round(record(1, east="data 3"))
    membership.remove(folder, "north")
    superlink(monkeypatch, "east south", [settings.flat()])
    basis, sites = site_status(folder, {})
    assert basis == f"round 1 of {settings.run_id}, which goes on"
    assert list(sites) == ["north", "east", "south", "west"]
    assert str(sites["east"]) == "refuses data 3", "by the numbers of the run's own text"


def test_a_detached_run_is_started_again_with_its_text(
    folder: FederationFolder, fedskew: FedSkew, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def popen(command: list[str], **options: Any) -> Any:
        commands.append(command)
        return SimpleNamespace(pid=1)

    monkeypatch.setattr("subprocess.Popen", popen)
    words = ("federation", "run", folder.path, "--set", "method=fedavg", "--detach")
    code, output, errors = fedskew(*words, "--results", folder.path / "results")
    assert code == 0, errors
    sha256 = folder.agreement.sha256
    rename(folder, "west", "far-west")
    queue = RunQueue(folder)
    queue.write(replace(queue.get(1), process="1/0.5"))  # which has ended
    assert queue.restart_lost() == [1]
    assert queue.get(1).text == sha256, "which the process reads"
    assert len(commands) == 2 and all("--queued" in command for command in commands)
    code, output, _ = fedskew("federation", "runs", folder.path)
    assert code == 0 and "(a former text)" in output
    code, output, _ = fedskew("federation", "runs", folder.path, "--json")
    assert {*json.loads(output)[0]} == {
        "run", "state", "reason", "user", "asked", "settings", "results"
    }  # fmt: skip


# ---- the order of the texts ------------------------------------------------------------------------------------------


def test_changes_within_a_second_and_a_clock_that_is_set_back_keep_their_order(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(datetime):
        year_now = 2026

        @classmethod
        def now(cls, tz: Any = None) -> "Clock":
            return cls(cls.year_now, 11, 26, tzinfo=tz)

    monkeypatch.setattr(membership, "datetime", Clock)
    texts = []
    for number in range(6):
        texts.append(folder.agreement.sha256)
        rename(folder, folder.agreement.names[3], f"west-{number}")
        if number == 3:
            Clock.year_now = 2025
    assert [read_agreement(file).sha256 for file in former_texts(folder)] == texts
    assert former_agreement(folder).sha256 == texts[-1]


def test_a_former_text_of_another_name_stops_no_change(folder: FederationFolder) -> None:
    other = folder.path / "superseded/by-hand.toml"
    other.parent.mkdir()
    other.write_bytes(folder.agreement_file.read_bytes())
    rename(folder, "west", "far-west")
    assert len(former_texts(folder)) == 2
    assert f"{datetime.now(UTC):%Y}" in former_texts(folder)[0].name


# ---- --former --------------------------------------------------------------------------------------------------------


def test_there_is_no_former_text_before_a_change(
    folder: FederationFolder, fedskew: FedSkew
) -> None:
    for command in ("run", "status"):
        status, _, errors = fedskew("federation", command, folder.path, "--former")
        assert status != 0
        assert errors.count("\n") == 1
        assert "federation.toml: has no former text: no command has changed it yet" in errors


def test_the_former_text_s_release_must_be_installed(
    folder: FederationFolder, fedskew: FedSkew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "app_files", lambda path: {"client_app/app.py": b"app = 2\n"})
    update(folder)
    status, _, errors = fedskew("federation", "run", folder.path, "--former")
    assert status != 0 and "superseded/" in errors and "app = " in errors
    assert "is another than the app that is installed here" in errors
    assert "run the command of the release that was installed before" in errors
    monkeypatch.setattr(membership, "app_files", lambda path: HERE)
    assert former_agreement(folder).app == app_hash(HERE)  # the control


def test_a_run_with_the_former_text_is_asked_for(
    folder: FederationFolder, fedskew: FedSkew, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def run(federation: FederationFolder, settings: Any, *_: object) -> dict[str, Any]:
        asked.append((settings, federation.agreement))
        return {"rounds": 1}

    monkeypatch.setattr(run_module, "run", run)
    former = folder.agreement
    membership.remove(folder, "west")
    words = (
        "federation",
        "run",
        folder.path,
        "--set",
        "method=fedavg",
        "--results",
        folder.path / "results",
    )
    for option in ((), ("--former",)):
        status, output, errors = fedskew(*words, *option)
        assert status == 0, errors
        warning = "Warning: west leaves: masked sums of both federations differ by west alone"
        assert (warning in output) == bool(option)
    (usual, current), (with_former, still) = asked
    assert usual.agreement == current == still and usual.agreement.names == [
        "north",
        "east",
        "south",
    ]
    assert with_former.agreement == former
    assert [run.text for run in RunQueue(folder).runs()] == [current.sha256, former.sha256]


def test_sites_are_asked_about_the_former_text(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch, fedskew: FedSkew
) -> None:
    former = folder.agreement
    membership.remove(folder, "west")
    answers = dict.fromkeys(("north", "east", "south"), "")
    answers["east"] = "agreement: federation.toml 0123456789abcdef is not approved at this site"
    link = superlink(monkeypatch, "north east south", [], answers)
    monkeypatch.setattr(link, "states", dict.fromkeys(answers, "online") | {"west": "unknown"})
    monkeypatch.setattr(link, "absent_since", lambda agreement: dict.fromkeys(agreement.names, ""))
    code, output, errors = fedskew("federation", "status", folder.path, "--former")
    assert code == 1, errors  # two of four are ready, and more than half is three
    assert link.asked["dataset"] == folder.dataset(former.sha256)
    assert "east: refuses agreement: federation.toml 0123456789abcdef is not approved" in output
    assert "west: away" in output and "north: ready" in output


# ---- update with another text ----------------------------------------------------------------------------------------


def draft(folder: FederationFolder, **changes: Any) -> Path:
    """Write another text for the federation, which states an app of no meaning."""
    return write(folder.path.parent / "draft.toml", agreed(site=FOUR, **changes))


def test_another_text_is_one_command(folder: FederationFolder, fedskew: FedSkew) -> None:
    former = folder.agreement
    file = draft(folder, min_sites=4)
    code, output, errors = fedskew("federation", "update", folder.path, file)
    assert code == 0, errors
    assert "+min-sites = 4" in output and "--keep-former HOURS" in output
    after = FederationFolder(folder.path).agreement
    assert after.min_sites == 4 and after.app == app_hash(HERE)
    assert former_agreement(folder).sha256 == former.sha256
    code, output, _ = fedskew("federation", "update", folder.path, file)
    assert code == 0 and "federation.toml already has this" in output


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "heart"}, "name = 'heart': must be that of the federation, chest"),
        ({"min_sites": 9}, "min-sites = 9: must be at most the number of sites, 4"),
        ({"classes": ["one"]}, "classes"),
    ],
)
def test_a_text_that_cannot_be_agreed_to_changes_nothing(
    folder: FederationFolder, fedskew: FedSkew, changes: dict[str, Any], message: str
) -> None:
    before = folder.agreement_file.read_bytes()
    code, _, errors = fedskew("federation", "update", folder.path, draft(folder, **changes))
    assert code != 0 and "draft.toml" in errors and message in errors
    assert errors.count("\n") == 1
    assert folder.agreement_file.read_bytes() == before and not former_texts(folder)


def test_a_key_that_was_replaced_does_not_come_back_by_a_text(folder: FederationFolder) -> None:
    membership.rekey(folder, "west", public_key("new"))
    with pytest.raises(DataError, match="was a site's before and is not valid any more"):
        update(folder, draft(folder))
    site = {**FOUR[3], "key": public_key("newer")}
    update(folder, write(folder.path.parent / "draft.toml", agreed(site=[*FOUR[:3], site])))


def test_add_keeps_the_former_text_of_a_federation_that_has_run(
    folder: FederationFolder, fedskew: FedSkew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedskew.federation.services.register", lambda folder: None)
    words = ("federation", "add", folder.path)
    (site, other) = with_mask_keys(("fifth", "sixth"))
    fedskew(*words, "fifth", site["key"], "--mask-key", site["mask-key"])
    assert not former_texts(folder)
    (folder.state / DATABASE).touch()
    former = FederationFolder(folder.path).agreement
    code, _, errors = fedskew(*words, "sixth", other["key"], "--mask-key", other["mask-key"])
    assert code == 0, errors
    assert former_agreement(folder).sha256 == former.sha256
