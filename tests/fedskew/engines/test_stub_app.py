"""The small app that a run on Ray is started by: Flower takes it, and it is the real app that it leads to."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedskew.engines import APP
from fedskew.engines.stub_app import write_stub_app
from site_agent.app_files import app_files

PYPROJECT = APP / "pyproject.toml"
IMPORTING = """
import client_app.app, server_app.app, stub_clientapp, stub_serverapp
assert stub_clientapp.clientapp is client_app.app.app
assert stub_serverapp.serverapp is server_app.app.app
print(client_app.app.__file__, server_app.app.__file__, sep="\\n")
"""


def test_the_stub_leads_to_the_app_where_it_lies(tmp_path: Path) -> None:
    folder = write_stub_app(APP, tmp_path / "stub")
    words = [sys.executable, "-c", IMPORTING]
    printed = subprocess.run(
        words, cwd=folder, env={"PYTHONPATH": str(folder)}, capture_output=True, text=True
    )
    apps = [str(APP / name / "app.py") for name in ("client_app", "server_app")]
    assert printed.stdout.splitlines() == apps, printed.stderr


def test_another_server_app_goes_before_the_app_s_own(tmp_path: Path) -> None:
    folder = write_stub_app(APP, tmp_path / "stub", "fedskew.engines.ray_server:app")
    server = (folder / "stub_serverapp.py").read_text()
    assert "'fedskew.engines.ray_server'" in server and "'app'" in server
    assert "'client_app.app'" in (folder / "stub_clientapp.py").read_text()


def test_flower_packs_the_stub_with_the_app_s_settings(tmp_path: Path) -> None:
    files = app_files(write_stub_app(APP, tmp_path / "stub"))
    assert sorted(files) == ["pyproject.toml", "stub_clientapp.py", "stub_serverapp.py"]
    given, packed = (
        tomllib.loads(text.decode()) for text in (PYPROJECT.read_bytes(), files["pyproject.toml"])
    )
    assert given["tool"]["flwr"]["app"]["config"] == packed["tool"]["flwr"]["app"]["config"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not toml",
        "[tool.flwr]\napp = 1\n",
        "[tool.flwr.app]\n",
        "[tool.flwr.app]\npublisher = 'a'\ncomponents.serverapp = 'a'\n",
        "[tool.flwr.app.components]\nserverapp = 'a:b'\n",
    ],
)
def test_what_is_no_app_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ValueError, match=r"pyproject\.toml describes no Flower app"):
        write_stub_app(tmp_path, tmp_path / "stub")
    assert not (tmp_path / "stub").exists()
