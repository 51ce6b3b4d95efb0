"""An app's hash is over names and contents: equal for a folder and its .fab, whatever the zip."""

import io
import stat
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from hypothesis import given, settings
from hypothesis import strategies as st

from data import DataError
from site_agent.app_files import app_files, app_hash, build, packed_files, staged

PROJECT = """
[project]
name = "small"
version = "1.0.0"
description = "An app."
license = {text = "Apache-2.0"}
[tool.flwr.app]
publisher = "nobody"
[tool.flwr.app.components]
serverapp = "small.server:app"
clientapp = "small.client:app"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "small-app"
    for name, text in (
        ("pyproject.toml", PROJECT),
        ("small/client.py", "app = 1\n"),
        ("small/server.py", "app = 2\n"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "samples.csv").write_text("no part of the app")
    return folder


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
def test_what_flwr_sees_of_a_clone_is_what_its_app_names(folder: Path, tmp_path: Path) -> None:
    including = PROJECT.replace('"nobody"', '"nobody"\nfab-include = ["small/**", "/README.md"]')
    texts = {
        "pyproject.toml": including,
        ".gitignore": "notes.txt",
        "README.md": "An app.",
        "small/notes.txt": "None's.",
    }
    for name, text in {
        **texts,
        ".venv/bin/python": "",
        "results/run/rounds.jsonl": "",
        "small/deep/a.py": "",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "small" / "link.py").symlink_to(folder / "small" / "client.py")
    seen = staged(folder, tmp_path / "seen")
    assert sorted(path.name for path in seen.iterdir()) == [
        ".gitignore",
        "README.md",
        "pyproject.toml",
        "small",
    ]
    assert build_fab_from_disk(seen) == build_fab_from_disk(folder)
    assert sorted(app_files(folder)) == [
        "README.md",
        "pyproject.toml",
        *(f"small/{n}.py" for n in ("client", "deep/a", "server")),
    ]


@pytest.mark.parametrize(
    "included",
    [
        'fab-include = ["**/*.py"]',
        'fab-include = ["small/*.py"]',
        "fab-include = []",
        'fab-include = ["../small/**"]',
        "",
        "]",
    ],
)
def test_an_app_that_names_no_folders_is_left_where_it_is(
    folder: Path, tmp_path: Path, included: str
) -> None:
    (folder / "pyproject.toml").write_text(PROJECT.replace('"nobody"', f'"nobody"\n{included}'))
    assert staged(folder, tmp_path / "seen") == folder and not (tmp_path / "seen").exists()


def test_another_zip_has_the_same_hash_and_another_byte_does_not(folder: Path) -> None:
    files = app_files(folder)
    other = packed(dict(reversed(files.items())), level=1)
    assert other != build(folder) and app_hash(packed_files(other)) == app_hash(files)
    for name in files:
        assert app_hash(files | {name: files[name] + b" "}) != app_hash(files)
    renamed = {name.replace("client", "clienu"): content for name, content in files.items()}
    assert app_hash(renamed) != app_hash(files)


def test_what_flwr_says_about_the_zip_is_no_part_of_the_app(folder: Path) -> None:
    files = app_files(folder)
    assert app_hash(packed_files(packed(files | {".info/CONTENT": b"anything"}))) == app_hash(files)


@pytest.mark.parametrize(
    "name",
    [
        "../evil.py",
        "/etc/passwd",
        "a/../../b.py",
        "a\\b.py",
        "C:x.py",
        "a//b.py",
        "./a.py",
        "a\n.py",
    ],
)
def test_a_path_that_leads_out_of_the_app_is_refused(name: str) -> None:
    with pytest.raises(DataError, match="no plain path"):
        packed_files(packed({name: b""}))


def test_a_link_and_a_file_that_is_there_twice_are_refused() -> None:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as zipped:
        link = zipfile.ZipInfo("a.py")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        zipped.writestr(link, "/etc/passwd")
    with pytest.raises(DataError, match="is a link"):
        packed_files(whole.getvalue())
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as zipped, pytest.warns(UserWarning, match="Duplicate"):
        zipped.writestr("a.py", "1")
        zipped.writestr("a.py", "2")
    with pytest.raises(DataError, match="is there twice"):
        packed_files(whole.getvalue())


def test_too_large_an_app_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("site_agent.app_files.LARGEST", 1000)
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda *_: pytest.fail("it is unpacked"))
    with pytest.raises(DataError, match="at most"):
        packed_files(packed({"a.py": b"0" * 1001}))


def test_no_app_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="flwr cannot pack"):
        app_files(tmp_path)
    with pytest.raises(DataError, match="cannot be read"):
        app_files(tmp_path / "missing.fab")


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_damaged_fab_is_refused_and_nothing_else_happens(data: st.DataObject) -> None:
    whole = bytearray(packed({"client_app/a.py": b"import this\n" * 30, "b.toml": b"x = 1"}))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        packed_files(bytes(whole[: data.draw(st.integers(0, len(whole)))]))
    except DataError:
        return
