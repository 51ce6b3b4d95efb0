"""An app's hash is over names and contents: equal for a folder and its .fab, whatever the zip."""

import io
import stat
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

from data import DataError
from site_agent.app_files import app_files, app_hash, build, packed_files, staged
from tests.site_agent.hospital import write_app


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {
        "small/client.py": "app = 1\n",
        "small/server.py": "app = 2\n",
        "samples.csv": "no part of the app",
    }
    return write_app(tmp_path / "small-app", files, "small.client:app")


def packed(files: dict[str, bytes], level: int = 6) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as zipped:
        for name, content in files.items():
            zipped.writestr(name, content)
    return whole.getvalue()


def test_a_folder_and_its_fab_have_one_hash(folder: Path, tmp_path: Path) -> None:
    fab = tmp_path / "small.fab"
    fab.write_bytes(build(folder))
    files = app_files(folder)
    assert sorted(files) == ["pyproject.toml", "small/client.py", "small/server.py"]
    assert app_hash(files) == app_hash(app_files(fab))


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern")
def test_flwr_packs_of_a_clone_what_its_app_names_and_sees_no_other_folder(
    folder: Path, tmp_path: Path
) -> None:
    project = folder / "pyproject.toml"
    named = 'publisher = "nobody"\nfab-include = ["small/**", "/README.md"]'
    for name in (".venv/bin/python", "results/run/rounds.jsonl", "README.md"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    assert staged(folder, tmp_path / "seen") == folder, "it names no folders"
    project.write_text(project.read_text().replace('publisher = "nobody"', named))
    seen = staged(folder, tmp_path / "seen")
    assert {path.name for path in seen.iterdir()} == {"README.md", "pyproject.toml", "small"}
    assert build_fab_from_disk(seen) == build_fab_from_disk(folder)


def test_another_zip_has_the_same_hash_and_another_byte_does_not(folder: Path) -> None:
    files = app_files(folder)
    other = packed(dict(reversed(files.items())), level=1)
    assert other != build(folder) and app_hash(packed_files(other)) == app_hash(files)
    for name in files:
        assert app_hash(files | {name: files[name] + b" "}) != app_hash(files)
    about = packed(files | {".info/CONTENT": b"what flwr says of the zip"})
    assert app_hash(packed_files(about)) == app_hash(files)
    renamed = {f"{name}x": content for name, content in files.items()}
    assert app_hash(renamed) != app_hash(files)


@pytest.mark.parametrize(
    "name", ["../evil.py", "/etc/passwd", "a/../../b.py", "a\\b.py", "C:x.py", "./a.py", "a\n.py"]
)
def test_a_path_that_leads_out_of_the_app_is_refused(name: str) -> None:
    with pytest.raises(DataError):
        packed_files(packed({name: b""}))


@pytest.mark.filterwarnings("ignore:Duplicate")
def test_a_link_and_a_file_that_is_there_twice_are_refused() -> None:
    for is_link in (True, False):
        whole = io.BytesIO()
        with zipfile.ZipFile(whole, "w") as zipped:
            file = zipfile.ZipInfo("a.py")
            if is_link:
                file.external_attr = (stat.S_IFLNK | 0o777) << 16
            zipped.writestr(file, "1")
            if not is_link:
                zipped.writestr("a.py", "2")
        with pytest.raises(DataError):
            packed_files(whole.getvalue())


def test_too_large_an_app_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("site_agent.app_files.LARGEST", 1000)
    packed_files(packed({"a.py": b"0" * 1000}))
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda *_: pytest.fail("it is unpacked"))
    with pytest.raises(DataError):
        packed_files(packed({"a.py": b"0" * 1001}))
