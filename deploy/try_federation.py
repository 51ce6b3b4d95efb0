"""Run the federation of docs/guides/deployment.md on this machine; right if its hash is the rehearsal's.

    python deploy/try_federation.py [--dataset digits] [--sites 4] [--rounds 6] [--keep FOLDER]

Sites get a folder, a key and a state each, reach the coordinator through gateway and TLS, and see their own data alone.
Then the same site folders are run in one process. Exit status 0 only if the two hashes of everything are the same.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from local_federation import MODELS, SPLITS, LocalFederation


def main() -> int:
    """Found a federation, train, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dataset", default="digits", choices=sorted(SPLITS))
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--method", default="fedshift+fedbn")
    parser.add_argument(
        "--keep", type=Path, help="An empty folder to work in and to leave as it is then."
    )
    stated = parser.parse_args()
    began = time.monotonic()

    def lap(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s: {what}", flush=True)

    with tempfile.TemporaryDirectory(prefix="fedskew-") as temporary:
        federation = LocalFederation(stated.keep or Path(temporary))
        federation.prepare(stated.dataset, stated.sites)
        lap("founded and approved")
        run = [
            f"method={stated.method}",
            f"rounds={stated.rounds}",
            f"model={MODELS[stated.dataset]}",
        ]
        with federation.at_work():
            lap(f"{len(federation.places)} sites are online")
            trained = federation.run(run)
            lap(f"{stated.rounds} rounds")
        rehearsed = federation.rehearse(run)
    same = trained["hash"] == rehearsed["hash"]
    for name, summary in (("federation", trained), ("rehearsal", rehearsed)):
        print(
            f"{name}: "
            + ", ".join(
                f"{part} {(value or 'null')[:16]}" for part, value in summary["hash"].items()
            )
        )
    lap("the same" if same else "NOT THE SAME")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
