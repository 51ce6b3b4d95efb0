"""A site with an app that is what is installed, and `fedskew-site` in this process."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if (
    TYPE_CHECKING
):  # the modules of the product are imported only once tests/conftest.py has imported flwr
    from tests.site_agent.hospital import Hospital

FedSkewSite = Callable[..., tuple[int, str, str]]
Install = Callable[[Path], None]


@pytest.fixture
def fedskew_site(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> FedSkewSite:
    """Return a function that runs `fedskew-site WORDS` and returns exit status, stdout and stderr."""
    from site_agent.cli import main

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedskew-site", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that lets an app's folder be what is installed here."""

    def install(folder: Path) -> None:
        monkeypatch.setattr("site_agent.approval.ROOT", folder)
        monkeypatch.setattr("data.packages.ROOT", folder)

    return install


@pytest.fixture
def hospital(tmp_path: Path, install: Install) -> "Hospital":
    """A site that has received federation.toml and the installed app, and has approved nothing."""
    from tests.site_agent.hospital import CODE, Hospital, write_app

    app = write_app(tmp_path / "app", CODE)
    install(app)
    return Hospital(tmp_path / "north", app)
