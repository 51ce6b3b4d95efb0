"""Compare the hashes of the finished runs that two results folders have in common.

python scripts/same_hash.py FOLDER OTHER
"""

import json
import sys
from pathlib import Path


def hashes(results: Path) -> dict[str, str]:
    """Return the hash of all weights of each finished run, by the run's name."""
    found = {}
    for file in results.glob("*/summary.json"):
        summary = json.loads(file.read_text())
        found[file.parent.name] = summary["hash"]["all"]
    return found


def main() -> None:
    """Print the hashes; exit with 1 where they differ, or nothing is in common."""
    first, second = map(Path, sys.argv[1:])
    ours, theirs = hashes(first), hashes(second)
    common = sorted(ours.keys() & theirs.keys())
    same = bool(common)
    for name in common:
        print(f"{ours[name]}  {first / name}")
        print(f"{theirs[name]}  {second / name}")
        same = same and ours[name] == theirs[name]
    print("The same, to the bit." if same else "NOT the same.")
    sys.exit(not same)


if __name__ == "__main__":
    main()
