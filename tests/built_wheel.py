"""FedSkew's wheel, built by pip with hatchling, and a fresh environment in which it is installed."""

import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def copy_of_the_clone(folder: Path) -> Path:
    """Copy the files that git knows into a folder, as a clone has them, and return it."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listing.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    return folder


def built_wheel(folder: Path) -> Path:
    """Build the wheel in `folder` from a copy of the clone, and return its file."""
    clone = copy_of_the_clone(folder / "clone")
    words = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, clone]
    subprocess.run([sys.executable, "-m", "pip", *map(str, words)], check=True, timeout=900)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def fresh_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the built wheel and no clone, for all slow tests that need one.

    Its dependencies are those of the environment of the tests.
    """
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("fresh")
    wheel = built_wheel(folder)
    home = folder / "environment"
    venv.create(home, symlinks=True)
    (packages,) = home.glob("lib/python*/site-packages")
    # Python follows no .pth file of a folder that is named by one, so the clone's is without effect.
    dependencies = Path(pytest.__file__).parents[1]
    (packages / "dependencies.pth").write_text(f"{dependencies}\n")
    # As --target, for the environment has no pip; with its commands, which stand beside its packages then.
    words = ["install", "--quiet", "--no-deps", "--no-index", "--target", str(packages), str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=900)
    return home / "bin" / "python"
