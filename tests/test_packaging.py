"""The Flower app bundle: valid by flwr's own rules and Flower Hub's limits, and whole enough to report and export."""

import io
import json
import os
import subprocess
import sys
import warnings
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # flwr's import of typer uses what click deprecates
    from flwr.cli.app_cmd.publish import _collect_file_paths, _validate_files
    from flwr.cli.build import build_fab_from_files
    from flwr.cli.utils import collect_files

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # so does its use of pathspec
ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("client_app", "data", "fedskew", "server_app", "site_agent", "strategies")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that git knows, as a clone has them."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout.decode()
    folder = tmp_path_factory.mktemp("clone") / "fedskew"
    for name in filter(None, listing.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    return folder


@pytest.fixture(scope="module")
def bundle(published: Path) -> zipfile.ZipFile:
    """The FAB that flwr builds of it."""
    fab, metadata = build_fab_from_files(collect_files(published))
    assert metadata.fab_format_version == 1 and metadata.flwr_version_target is not None
    return zipfile.ZipFile(io.BytesIO(fab))


def test_flower_hub_would_take_the_clone(published: Path) -> None:
    """Licence, number, size and encoding, by the checks that `flwr app publish` makes before it uploads."""
    _validate_files(_collect_file_paths(published))


def test_the_bundle_is_the_packages_with_every_file_of_theirs(
    bundle: zipfile.ZipFile, published: Path
) -> None:
    names = {name for name in bundle.namelist() if not name.startswith(".info/")}
    assert {name.split("/")[0] for name in names} == {*PACKAGES, "pyproject.toml", "experiments.yaml", "README.md",
                                                      "LICENSE"}  # fmt: skip
    sources = {
        file.relative_to(published).as_posix()
        for part in PACKAGES
        for file in (published / part).rglob("*.*")
    }
    assert sources - names == set(), "of a type that a bundle leaves out"


@pytest.mark.slow
def test_report_and_export_run_from_the_bundle(bundle: zipfile.ZipFile, tmp_path: Path) -> None:
    app = tmp_path / "app"
    bundle.extractall(app)
    script = (
        "import fedskew, sys; from pathlib import Path; from fedskew.cli.main import main\n"
        "from fedskew.experiments.experiments import experiment; from fedskew.experiments.plan import plan, runs\n"
        "from fedskew.report.document import document; from fedskew.report.results import gather\n"
        "from fedskew.report.page import html\n"
        "assert Path(fedskew.__file__).is_relative_to(Path('app').resolve())\n"
        "short = {'rounds': 1, 'local-steps': 1}\n"
        "mine = experiment('mine', {'title': 'Mine', 'methods': ['fedavg'], 'settings': short})\n"
        "(settings,) = runs(plan(mine)); folder = fedskew.run(settings.flat()).folder\n"
        "Path('report.html').write_text(html([document(gather(mine, {}))]))\n"
        "sys.argv = ['fedskew', 'export', str(folder), '--output', 'model']; main()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(app)}
    command = [sys.executable, "-W", "ignore", "-c", script]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=900)
    page = (tmp_path / "report.html").read_text()
    assert (
        "<style>" in page
        and "Mine" in page
        and (tmp_path / "model" / "README.md").read_text().startswith("---\n")
    )


@pytest.mark.slow
def test_the_bill_of_materials_names_what_is_installed(tmp_path: Path) -> None:
    """`make bill`, with the package index; a document of CycloneDX with the app, flwr and its version."""
    for name in ("Makefile", "pyproject.toml", "README.md"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    here = [
        f"BIN={Path(sys.executable).parent}",
        f"PYTHON={sys.executable}",
        f"VENV={tmp_path / 'venv'}",
    ]
    done = subprocess.run(
        ["make", "-o", "install", "bill", *here], cwd=tmp_path, capture_output=True, text=True
    )
    if "No matching distribution" in done.stderr or "Could not find a version" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr[-2000:]
    bill = json.loads((tmp_path / "bill-of-materials.json").read_text())
    versions = {
        component["name"].lower(): component.get("version") for component in bill["components"]
    }
    assert bill["bomFormat"] == "CycloneDX" and bill["metadata"]["component"]["name"] == "fedskew"
    assert {"flwr", "torch", "pillow", "jinja2"} <= versions.keys() and versions["flwr"] == version(
        "flwr"
    )
    assert not (tmp_path / "venv-bill").exists()
