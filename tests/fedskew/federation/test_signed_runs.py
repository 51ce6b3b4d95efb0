"""Runs that the coordinator's key signs: who holds gateway and SuperLink starts no other one at the sites."""

import gc
import json
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from client_app.local_site import RunNotSigned
from data import DataError, SettingError
from data.agreement import read_agreement
from data.renamed_settings import given_to_flower
from deploy.local_federation import LocalFederation, fedskew, settings
from fedskew.engines import APP
from fedskew.engines.flower import LaunchFailed
from fedskew.federation import run as run_module
from fedskew.federation import services, submission
from fedskew.federation.certificates import is_encrypted
from fedskew.federation.coordinator_key import make_key, read_key, sign_run, takes_signature
from fedskew.federation.folder import FederationFolder, add_site, begin
from fedskew.federation.membership import rename
from fedskew.federation.queue import QueuedRun, RunQueue
from fedskew.federation.superlink import Control
from server_app.settings import NOT_SETTINGS, defaults, parse
from site_agent.app_files import app_files
from site_agent.keys import public_text
from site_agent.run_signature import check_app_signed, check_signed
from tests.site_files import public_key

WORDS = ["model=mlp-bn", "learning-rate=0.1", "method=fedavg", "node-wait=20"]
SET = settings(["model=mlp-bn", "method=fedavg", "rounds=2"])
NEW = ["--name", "two", "--address", "127.0.0.1:9999", "--classes", "a,b", "--input-shape", "1x8x8"]


@pytest.fixture
def folder(tmp_path: Path) -> FederationFolder:
    """A federation of two sites, as its commands make it."""
    begun = begin(
        tmp_path / "study", "two", ["a", "b"], "1x8x8", [0.5], [0.5], None, "127.0.0.1:9999", "127.0.0.1"
    )  # fmt: skip
    for name in ("north", "east"):
        add_site(begun, name, public_key(name))
    return begun


class Followed:
    """What the command gives to `run`, which nothing follows here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.signatures: list[str] = []
        self.texts: list[str] = []
        monkeypatch.setattr(run_module, "run", self.run)

    def run(
        self, folder: object, planned: Any, print_line: object, wait: object, signature: str
    ) -> Any:
        self.signatures.append(signature)
        self.texts.append(planned.run_spec().to_json())
        return {}


# ---- the key ---------------------------------------------------------------------------------------------------------


def test_a_new_federation_has_a_key_that_signs_runs(folder: FederationFolder) -> None:
    key = folder.coordinator_key
    assert key.stat().st_mode & 0o777 == 0o600 and not is_encrypted(key)
    assert folder.agreement.run_key == public_text(read_key(key).public_key())
    planned = parse({"dataset": f"sites:{folder.agreement_file}"})
    text = planned.run_spec().to_json()
    check_signed(folder.agreement, text, sign_run(folder.agreement, text, key))


def test_the_key_may_be_kept_elsewhere_and_encrypted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSKEW_PASSPHRASE", "correct horse")
    key, authority = tmp_path / "coordinator.key", tmp_path / "ca.key"
    words = [*NEW, "--coordinator-key", key, "--authority-key", authority, "--encrypt"]
    fedskew("federation", "new", tmp_path / "study", *words)
    assert is_encrypted(key) and is_encrypted(authority)
    assert not (tmp_path / "study/coordinator.key").exists()
    read_key(key, "correct horse")
    for passphrase in ("", "wrong horse"):
        with pytest.raises(DataError, match="is encrypted, and this is not its passphrase"):
            read_key(key, passphrase)


def test_no_key_is_written_over_another_file(tmp_path: Path) -> None:
    key = tmp_path / "a.key"
    words = ["federation", "new", tmp_path / "study", *NEW]
    with pytest.raises(SettingError, match="must be another file than --authority-key"):
        fedskew(*words, "--coordinator-key", key, "--authority-key", key)
    key.write_text("mine")
    with pytest.raises(SettingError, match="is there already"):
        fedskew(*words, "--coordinator-key", key)
    with pytest.raises(DataError, match="never overwritten"):
        make_key(key)
    assert key.read_text() == "mine" and not (tmp_path / "study").exists()


def test_a_key_that_others_may_read_or_of_another_kind_is_refused(
    folder: FederationFolder, tmp_path: Path
) -> None:
    read_key(folder.coordinator_key)
    folder.coordinator_key.chmod(0o644)
    with pytest.raises(DataError, match=r"others may read this key \(mode 644\)"):
        read_key(folder.coordinator_key)
    other = tmp_path / "other.key"
    other.touch(0o600)
    other.write_text("no key")
    with pytest.raises(DataError, match="must be an ECDSA P-384 key"):
        read_key(other)
    make_key(tmp_path / "third.key")
    with pytest.raises(DataError, match=r"is not the key whose public half is run-key"):
        sign_run(folder.agreement, "{}", tmp_path / "third.key")


def test_another_key_is_agreed_to(folder: FederationFolder, tmp_path: Path) -> None:
    before, text = folder.agreement.run_key, folder.agreement_file.read_text()
    command = ["federation", "coordinator-key", folder.path]
    with pytest.raises(DataError, match="never overwritten"):
        fedskew(*command)
    assert folder.agreement_file.read_text() == text
    printed = fedskew(*command, "--coordinator-key", tmp_path / "second.key")
    after = read_agreement(folder.agreement_file)
    assert after.run_key == public_text(read_key(tmp_path / "second.key").public_key()) != before
    assert f'-run-key = "{before}"' in printed and after.names == ["north", "east"]
    (kept,) = (folder.path / "superseded").iterdir()
    assert kept.read_text() == text


def test_a_federation_without_the_key_gets_one(folder: FederationFolder) -> None:
    lines = folder.agreement_file.read_text().splitlines(keepends=True)
    own = [line for line in lines if not line.startswith("run-key")]
    table = ["[module]\n", 'name = "net"\n', f'sha256 = "{"0" * 64}"\n', "\n"]
    first = own.index("[[site]]\n")
    folder.agreement_file.write_text("".join([*own[:first], *table, *own[first:]]))
    folder.coordinator_key.unlink()
    assert not read_agreement(folder.agreement_file).run_key
    fedskew("federation", "coordinator-key", folder.path)
    agreement = read_agreement(folder.agreement_file)
    assert agreement.run_key and agreement.module == "net"
    folder.coordinator_key.unlink()
    folder.agreement_file.write_text("no agreement")
    with pytest.raises(DataError):
        fedskew("federation", "coordinator-key", folder.path)
    assert not folder.coordinator_key.exists(), "no key that nothing names"


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_what_is_signed_is_what_the_server_app_sends(folder: FederationFolder) -> None:
    """The ServerApp reads the settings once more, from flwr's run config."""
    dataset = f"sites:{folder.agreement_file.resolve()}"
    for stated in (
        {},
        {"method": "fedshift+fedbn", "rounds": 3},
        {"method": "fedprox", "proximal.mu": 0.1, "learning-rate": 0.3, "seed": 4},
    ):
        planned = parse({"model": "mlp-bn", **stated, "dataset": dataset})
        config = planned.going_on().run_config()
        given = given_to_flower(dict(config), defaults())
        assert parse(given).run_spec().to_json() == planned.run_spec().to_json()
    assert "run-signature" in NOT_SETTINGS and takes_signature(app_files(APP))


def test_a_run_is_signed_when_it_is_asked_for(
    folder: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = Followed(monkeypatch)
    words = ["federation", "run", folder.path, *SET, "--results", tmp_path / "results"]
    fedskew(*words)
    (signature,) = followed.signatures
    check_signed(folder.agreement, followed.texts[0], signature)
    assert RunQueue(folder).get(1).signature == signature
    with pytest.raises(RunNotSigned):
        check_signed(
            folder.agreement, followed.texts[0].replace('"rounds": 2', '"rounds": 3'), signature
        )


def test_the_signature_may_come_from_another_machine(
    folder: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = Followed(monkeypatch)
    office = tmp_path / "office.key"
    folder.coordinator_key.rename(office)
    words = ["federation", "run", folder.path, *SET, "--results", tmp_path / "results"]
    with pytest.raises(DataError, match=r"coordinator\.key: there is no such key, .*--signature"):
        fedskew(*words)
    copy = tmp_path / "office"
    copy.mkdir()
    shutil.copy(folder.agreement_file, copy)
    signature = fedskew("federation", "sign", copy, *SET, "--coordinator-key", office).strip()
    fedskew(*words, "--signature", signature)
    assert followed.signatures == [signature]
    for wrong in ("AAAA", fedskew("federation", "sign", copy, "--coordinator-key", office).strip()):
        with pytest.raises(
            DataError, match="has changed since it was signed: ask for the run again"
        ):
            fedskew(*words, "--signature", wrong)
    assert followed.signatures == [signature] and RunQueue(folder).numbers() == [1]


def test_a_detached_run_has_the_signature_and_neither_key_nor_passphrase(
    folder: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSKEW_PASSPHRASE", "correct horse")
    folder.coordinator_key.unlink()
    fedskew("federation", "coordinator-key", folder.path, "--encrypt")
    started: list[tuple[list[str], dict[str, str]]] = []

    def popen(command: list[str], *, env: dict[str, str], **_: Any) -> Any:
        started.append((command, env))
        return SimpleNamespace(pid=1)

    monkeypatch.setattr(subprocess, "Popen", popen)
    words = ["federation", "run", folder.path, *SET, "--results", tmp_path / "results"]
    fedskew(*words, "--detach")
    queue = RunQueue(folder)
    signature = queue.get(1).signature
    monkeypatch.setattr(RunQueue, "status", lambda self, run: SimpleNamespace(state="lost"))
    assert queue.restart_lost() == [1] and queue.get(1).signature == signature != ""
    for command, environment in started:
        assert "--queued" in command and "FEDSKEW_PASSPHRASE" not in environment
        assert "PATH" in environment
    assert len(started) == 2
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or b"correct horse" not in file.read_bytes()
    assert "FEDSKEW_PASSPHRASE" not in services.environment(folder)

    # What the process does then.
    monkeypatch.undo()
    monkeypatch.delenv("FEDSKEW_PASSPHRASE", raising=False)
    followed = Followed(monkeypatch)
    fedskew(*words, "--queued", "1")
    assert followed.signatures == [signature]


def test_a_run_keeps_the_text_that_it_was_signed_for(
    folder: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = Followed(monkeypatch)
    monkeypatch.setattr(RunQueue, "start", lambda self, run: run)
    words = ["federation", "run", folder.path, *SET, "--results", tmp_path / "results"]
    fedskew(*words, "--detach")
    former = folder.agreement
    rename(folder, "east", "west")
    fedskew(*words, "--queued", "1")
    queue = RunQueue(folder)
    assert followed.signatures == [queue.get(1).signature]
    check_signed(former, followed.texts[0], followed.signatures[0])

    # An entry that names no text, as of an earlier version, is for the text of today.
    queue.write(replace(queue.get(1), text=""))
    with pytest.raises(DataError, match="has changed since it was signed: ask for the run again"):
        fedskew(*words, "--queued", "1")
    status = queue.status(queue.get(1))
    assert status.state == "failed" and "has changed since it was signed" in status.reason
    assert len(followed.signatures) == 1
    fedskew(*words)
    assert len(followed.signatures) == 2


def test_without_run_key_nothing_is_signed_and_old_entries_are_read(
    folder: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = Followed(monkeypatch)
    lines = folder.agreement_file.read_text().splitlines(keepends=True)
    folder.agreement_file.write_text("".join(line for line in lines if "run-key" not in line))
    folder.coordinator_key.unlink()
    fedskew("federation", "run", folder.path, *SET, "--results", tmp_path / "results")
    assert followed.signatures == [""]
    with pytest.raises(DataError, match="so no run is signed"):
        fedskew("federation", "sign", folder.path, *SET)
    queue = RunQueue(FederationFolder(folder.path))
    file = queue.place(1) / "run.json"
    entry = json.loads(file.read_text())
    del entry["signature"]
    file.write_text(json.dumps(entry))
    assert queue.get(1) == QueuedRun(**{**entry, "words": tuple(entry["words"])})
    assert queue.get(1).signature == ""


def test_every_submission_of_a_run_has_its_signature(
    folder: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs: list[dict[str, Any]] = []

    def submit(app: Path, config: dict[str, Any]) -> int:
        configs.append(config)
        if len(configs) == 3:
            raise LaunchFailed("so far")
        raise run_module.RunLost("run 1 was lost")

    control = SimpleNamespace(submit=submit)
    monkeypatch.setattr(run_module, "Control", lambda port, authority: control)
    monkeypatch.setattr(run_module, "LOOK", 0.0)
    monkeypatch.setattr(run_module, "running", lambda folder, service: [])
    monkeypatch.setattr(run_module, "gateway_answers", lambda folder: True)
    planned = parse(
        {"dataset": f"sites:{folder.agreement_file}", "results": str(tmp_path / "results")}
    )
    with pytest.raises(LaunchFailed, match="so far"):
        run_module.run(folder, planned, lambda line: None, None, "signed")
    assert [config["run-signature"] for config in configs] == ["signed"] * 3


# ---- another Flower app ----------------------------------------------------------------------------------------------

PYPROJECT = """\
[project]
name = "tiny"
version = "1.0.0"
description = "A tiny app."
license = "Apache-2.0"

[tool.flwr.app]
publisher = "you"

[tool.flwr.app.components]
serverapp = "tinyapp:app"
clientapp = "tinyapp:app"

[tool.flwr.app.config]
rounds = 3
rate = 0.5
"""


@pytest.mark.parametrize("declared", [True, False])
def test_runs_of_another_app_are_signed_where_it_declares_the_signature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declared: bool
) -> None:
    app = tmp_path / "app"
    app.mkdir()
    (app / "pyproject.toml").write_text(PYPROJECT + ('run-signature = ""\n' if declared else ""))
    (app / "tinyapp.py").write_text("app = 1\n")
    study = tmp_path / "study"
    printed = fedskew("federation", "new", study, *NEW[:4], "--app", app)
    folder = FederationFolder(study)
    for name in ("north", "east"):
        add_site(folder, name, public_key(name))
    assert ("Its runs are not signed" in printed) != declared
    assert bool(folder.agreement.run_key) == folder.coordinator_key.exists() == declared
    if not declared:
        with pytest.raises(DataError, match="for its runs to be signed"):
            fedskew("federation", "coordinator-key", study)
        words = ["federation", "new", tmp_path / "b", *NEW[:4], "--app", app]
        with pytest.raises(SettingError, match="has no effect: the app needs run-signature"):
            fedskew(*words, "--coordinator-key", tmp_path / "b.key")

    configs: list[dict[str, Any]] = []

    def submit(app: Path, config: dict[str, Any]) -> int:
        configs.append(config)
        return 7

    ended = SimpleNamespace(finished=True, status="finished:completed", details="")
    control = SimpleNamespace(submit=submit, status=lambda run: ended)
    monkeypatch.setattr(submission, "Control", lambda port, authority: control)
    fedskew("federation", "submit", study, "--config", "rounds=4")
    (config,) = configs
    assert ("run-signature" in config) == declared and config["rounds"] == 4
    check_app_signed(folder.agreement, "north", {"rate": 0.5, **config})
    if declared:
        with pytest.raises(RunNotSigned):
            check_app_signed(folder.agreement, "north", {"rate": 0.6, **config})
        with pytest.raises(SettingError, match="round"):
            fedskew("federation", "submit", study, "--config", "round=4")


# ---- with real SuperLink, gateway and sites --------------------------------------------------------------------------


def submitted(federation: LocalFederation, signature: str, seed: int) -> tuple[int, str]:
    """Start a run at the SuperLink, past the command; return its number there, and how it ends."""
    folder = FederationFolder(federation.folder)
    stated = {
        "model": "mlp-bn",
        "method": "fedavg",
        "rounds": 1,
        "seed": seed,
        "dataset": f"sites:{folder.agreement_file.resolve()}",
        "results": str(federation.work / "past-the-command"),
    }
    config = {**parse(stated).run_config(), "run-signature": signature}
    control = Control(folder.coordinator.superlink_port, folder.authority[0])
    number = control.submit(APP, config)
    deadline = time.monotonic() + 900
    while not (status := control.status(number)).finished:
        assert time.monotonic() < deadline
        time.sleep(0.3)
    return number, status.details


def entries(place: Path) -> list[dict[str, object]]:
    """Return the entries of a site's audit log."""
    lines = (place / "state" / "audit.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.slow
# The coordinator's commands run in this process, and leave their connections to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_sites_take_signed_runs_alone(tmp_path: Path) -> None:
    """The key lies on another machine: there `sign` reads a copy of the folder without the SuperLink's state."""
    federation = LocalFederation(tmp_path)
    federation.prepare("digits", 2)
    founding = tmp_path / "founding"
    shutil.copytree(federation.folder, founding)
    for name in ("ca.key", "coordinator.key"):
        (federation.folder / name).unlink()
    words = settings([*WORDS, "rounds=2"])
    try:
        federation.up()
        federation.start()
        federation.wait_for_sites()
        with pytest.raises(Exception, match=r"coordinator\.key: there is no such key"):
            federation.run([*WORDS, "rounds=2"])

        # Nobody has signed it, or somebody has signed another run.
        signature = fedskew("federation", "sign", founding, *words).strip()
        for number, given in enumerate(("", signature)):
            run, ended = submitted(federation, given, seed=number)
            assert "site site-0 refuses the run, as run-key has not signed it: not signed" in ended
            for place in federation.places.values():
                about = [entry for entry in entries(place) if entry.get("run") == run]
                assert {entry["event"] for entry in about} == {"run", "answered"}
                (left,) = next(entry["left"] for entry in about if entry["event"] == "answered")
                assert str(left["why"]).startswith("not signed: run-key ")
                assert "RunNotSigned: not signed:" in (place / "state" / "site.log").read_text()
                assert not (place / "state" / "runs").exists()

        # Whether sites are ready may be asked without a signature.
        assert fedskew("federation", "status", federation.folder).count(": ready") == 2

        # The signed run passes, and is the rehearsal's, which needs no signature.
        run_words = federation.run_words([*WORDS, "rounds=2"])
        trained = json.loads(fedskew(*run_words, "--signature", signature))
        assert trained["hash"] == federation.rehearse([*WORDS, "rounds=2"])["hash"]
        for place in federation.places.values():
            assert entries(place)[-1]["event"] == "answered"
    finally:
        federation.down()
        gc.collect()  # closes connections while the test's filters of warnings are in force
