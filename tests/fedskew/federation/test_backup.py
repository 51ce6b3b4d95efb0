"""A coordinator's backup, which is restored into other folders."""

import io
import json
import shutil
import tarfile
from pathlib import Path

import pytest

from data import DataError, SettingError
from deploy.local_federation import LocalFederation, fedskew
from fedskew.federation.backup import MANIFEST, backup, restore
from fedskew.federation.folder import DATABASE, FederationFolder
from tests.site_files import agreed, write


@pytest.fixture
def folder(tmp_path: Path) -> FederationFolder:
    """A coordinator's folder with keys, a former text and flwr's state."""
    path = tmp_path / "study"
    write(path / "federation.toml", agreed())
    (path / "coordinator.toml").write_text(
        'address = "gate.example.org:8443"\nsuperlink-port = 9092\n'
    )
    (path / "ca.key").write_text("private")
    (path / "ca.key").chmod(0o600)
    (path / "superseded").mkdir()
    (path / "superseded/a.toml").write_text("former")
    (path / "superlink").mkdir()
    (path / "superlink" / DATABASE).write_text("database")
    return FederationFolder(path)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "results"
    (path / "run-1").mkdir(parents=True)
    (path / "run-1/checkpoint.safetensors").write_bytes(bytes(range(256)))
    return path


def contents(path: Path) -> dict[str, bytes]:
    return {
        file.relative_to(path).as_posix(): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file()
    }


def test_what_is_saved_comes_back(folder: FederationFolder, results: Path, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar.gz"
    assert backup(folder, file, results) == 5
    assert file.stat().st_mode & 0o077 == 0
    restored = restore(file, tmp_path / "new/study", tmp_path / "new/results")
    saved = contents(folder.path)
    del saved["superlink/state.db"]
    assert contents(restored.path) == saved
    assert contents(tmp_path / "new/results") == contents(results)
    assert (restored.path / "ca.key").stat().st_mode & 0o777 == 0o600
    assert restored.state.stat().st_mode & 0o777 == 0o700
    assert restored.agreement == folder.agreement
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["results", "study"]


def test_a_backup_needs_no_runs(folder: FederationFolder, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar.gz"
    assert backup(folder, file) == 4
    restore(file, tmp_path / "new")
    with pytest.raises(DataError, match="has no results"):
        restore(file, tmp_path / "other", tmp_path / "runs")
    assert not (tmp_path / "other").exists()


def test_nothing_is_overwritten(folder: FederationFolder, results: Path, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar.gz"
    for place in (folder.path / "backup.tar.gz", results / "backup.tar.gz"):
        with pytest.raises(SettingError, match="must not be in"):
            backup(folder, place, results)
    with pytest.raises(DataError, match="there is no such folder"):
        backup(folder, file, tmp_path / "nowhere")
    with pytest.raises(DataError, match="there is no such file"):
        backup(FederationFolder(tmp_path), file)
    assert not file.exists()
    backup(folder, file, results)
    with pytest.raises(SettingError, match="is there already"):
        backup(folder, file, results)
    with pytest.raises(SettingError, match=r"FOLDER.*must be empty"):
        restore(file, folder.path, tmp_path / "runs")
    with pytest.raises(SettingError, match=r"--results.*must be empty"):
        restore(file, tmp_path / "new", results)
    with pytest.raises(SettingError, match="the backup has runs as well"):
        restore(file, tmp_path / "new")
    assert not (tmp_path / "new").exists() and not (tmp_path / "runs").exists()


def packed(file: Path, entries: dict[str, bytes], link: str = "", manifest: bytes = b"{}") -> Path:
    with tarfile.open(file, "w:gz") as archive:
        for name, content in (entries | {MANIFEST: manifest}).items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        if link:
            entry = tarfile.TarInfo("federation/link")
            entry.type, entry.linkname = tarfile.SYMTYPE, link
            archive.addfile(entry)
    return file


def test_a_damaged_or_hostile_archive_leaves_nothing(
    folder: FederationFolder, tmp_path: Path
) -> None:
    good = tmp_path / "good.tar.gz"
    backup(folder, good)
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(good.read_bytes()[:-200])
    text = tmp_path / "text.tar.gz"
    text.write_text("no archive")
    changed = json.dumps({"federation/federation.toml": "0" * 64}).encode()
    wrong = {
        "is no readable backup": [
            cut,
            text,
            tmp_path / "missing.tar.gz",
            packed(tmp_path / "up.tar.gz", {"../federation.toml": b"x"}),
            packed(tmp_path / "list.tar.gz", {}, manifest=b"no JSON"),
        ],
        "other entries than files": [packed(tmp_path / "link.tar.gz", {}, "/etc/passwd")],
        "is damaged: federation/federation.toml": [
            packed(tmp_path / "a.tar.gz", {"federation/federation.toml": b"x"}),
            packed(tmp_path / "b.tar.gz", {"federation/federation.toml": b"x"}, manifest=changed),
            packed(tmp_path / "c.tar.gz", {}, manifest=changed),
        ],
    }
    before = sorted(tmp_path.iterdir())
    for message, files in wrong.items():
        for file in files:
            with pytest.raises(DataError, match=message):
                restore(file, tmp_path / "new")
    assert sorted(tmp_path.iterdir()) == before
    restore(good, tmp_path / "new")  # the control


@pytest.mark.slow
# The coordinator's commands run in this process, and leave their connections to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_restored_coordinator_resumes_a_run_to_the_same_hash(tmp_path: Path) -> None:
    words = ["model=mlp-bn", "learning-rate=0.1", "method=fedshift+fedbn", "rounds=6"]
    federation = LocalFederation(tmp_path / "first")
    federation.prepare("digits", 3)
    file = tmp_path / "backup.tar.gz"
    try:
        federation.up()
        federation.start()
        federation.wait_for_sites()
        job = federation.begin(words, "runs")
        job.wait_for_round(2)
        results = str(federation.work / "runs")
        fedskew("federation", "backup", federation.folder, file, "--results", results)
        job.process.kill()
        fedskew("federation", "down", federation.folder)
        recorded = job.rounds()
        shutil.rmtree(federation.folder)
        shutil.rmtree(federation.work / "runs")

        federation.folder = tmp_path / "second/coordinator"
        restored = str(federation.work / "restored")
        fedskew("federation", "restore", file, federation.folder, "--results", restored)
        (records,) = (federation.work / "restored").glob("*/rounds.jsonl")
        saved = records.read_bytes().count(b"\n")
        assert 2 <= saved <= recorded
        federation.up()
        federation.wait_for_sites()
        summary = federation.run(words, "restored")
        assert summary["rounds"] == 6
        assert summary["hash"] == federation.rehearse(words)["hash"]
    finally:
        federation.stop()
        fedskew("federation", "down", federation.folder)
