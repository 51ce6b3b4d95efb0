"""Install `fedskew[site]` into an empty environment and train with it: size, seconds, check, and one round.

    python deploy/try_site_install.py [--torch "torch==2.13.0+cpu"] [--index-url URL]

The wheel is built from this clone. Three sites train one round of a network without torchvision's blocks; the first of
them runs from the new environment, the others from this one. Exit status 0 only if the check of the first site passes
and the run's hash is the rehearsal's. Needs the package index.
"""

import argparse
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from local_federation import LocalFederation
from try_federation import same_hashes

ROOT = Path(__file__).resolve().parent.parent
RUN = ["method=fedshift+fedbn", "model=mlp-bn", "rounds=1"]
SITE = "site-0"
TOO_LARGE = {"ray", "scipy", "scikit-learn", "matplotlib", "psutil"}
"""What no site may need."""


def pip(*words: str | Path) -> str:
    """Call a Python's pip, quietly, and return what it prints. The first word is the Python."""
    python, *rest = map(str, words)
    command = [python, "-m", "pip", *rest, "--disable-pip-version-check"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def mebibytes(folder: Path) -> float:
    """Return the size of a folder's files."""
    files = (file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    return sum(file.stat().st_size for file in files) / 2**20


def install(folder: Path, torch: str, options: list[str]) -> Path:
    """Make an environment with `fedskew[site]`, print its size and time, and return its folder of programs."""
    pip(sys.executable, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("fedskew-*.whl")
    place = folder / "environment"
    venv.create(place, with_pip=True)
    python = place / "bin/python"
    began = time.monotonic()
    pip(python, "install", "--quiet", *options, *([torch] if torch else []), f"{wheel}[site]")
    seconds = time.monotonic() - began
    packages = {
        line.partition("==")[0].lower()
        for line in pip(python, "list", "--format", "freeze").splitlines()
    }
    print(f"{len(packages)} packages, {mebibytes(place):.0f} MiB, {seconds:.0f} s", flush=True)
    if packages & TOO_LARGE:
        sys.exit(f"a site needs none of {', '.join(sorted(packages & TOO_LARGE))}")
    return place / "bin"


def main() -> int:
    """Install, check, train, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--torch", default="", help="A build of torch, as pip has it.")
    parser.add_argument(
        "--index-url", default="", help="Another index, as that of torch's builds for CPUs."
    )
    stated = parser.parse_args()
    options = ["--extra-index-url", stated.index_url] if stated.index_url else []
    with tempfile.TemporaryDirectory(prefix="fedskew-") as temporary:
        work = Path(temporary)
        programs = install(work, stated.torch, options)
        federation = LocalFederation(work / "federation", programs={SITE: programs})
        federation.prepare("digits", 3)
        place = federation.places[SITE]
        words = [programs / "fedskew-site", "check", "--site", place / "site.toml"]
        checked = subprocess.run(words, stdout=subprocess.PIPE, text=True, cwd=place)
        print(checked.stdout, flush=True)
        with federation.at_work():
            trained = federation.run(RUN)
        same = same_hashes({"federation": trained, "rehearsal": federation.rehearse(RUN)})
    return 0 if same and checked.returncode == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
