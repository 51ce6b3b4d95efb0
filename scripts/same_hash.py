"""Hold the finished runs that two results folders have in common against each other: were their numbers the same?

python scripts/same_hash.py FOLDER OTHER
"""

import json
import sys
from pathlib import Path


def hashes(results: Path) -> dict[str, str]:
    """Return the hash of everything that a finished run has made, by the run."""
    return {
        file.parent.name: json.loads(file.read_text())["hash"]["all"]
        for file in results.glob("*/summary.json")
    }


def main() -> None:
    """Print the hashes; exit with 1 where they differ, or nothing is in common."""
    first, second = map(Path, sys.argv[1:])
    ours, theirs = hashes(first), hashes(second)
    common = sorted(ours.keys() & theirs.keys())
    for name in common:
        print(f"{ours[name]}  {first / name}\n{theirs[name]}  {second / name}")
    same = [ours[name] for name in common] == [theirs[name] for name in common] != []
    print("The same, to the bit." if same else "NOT the same.")
    sys.exit(not same)


if __name__ == "__main__":
    main()
