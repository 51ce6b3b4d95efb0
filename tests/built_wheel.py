"""FedSkew's wheel, built by pip with hatchling."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def built_wheel(folder: Path) -> Path:
    """Build the wheel in `folder` from a copy of the files that git knows, and return its file."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    clone = folder / "clone"
    for name in filter(None, listing.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            (clone / name).write_bytes((ROOT / name).read_bytes())
    words = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, clone]
    subprocess.run([sys.executable, "-m", "pip", *map(str, words)], check=True, timeout=900)
    (wheel,) = folder.glob("*.whl")
    return wheel
