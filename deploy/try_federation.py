"""Run the federation of docs/guides/deployment.md on this machine; right if its hash is the rehearsal's.

    python deploy/try_federation.py [--dataset digits] [--sites 4] [--rounds 6] [--heads] [--keep FOLDER]

Sites get a folder, a key and a state each, reach the coordinator through gateway and TLS, and see their own data alone.
Then the same site folders are run in one process. Exit status 0 only if the two hashes of everything are the same.

With --heads the sites' class counts and feature statistics are summed under masks: first heads in closed form are
computed without a round, then fedshift trains one round with two seeds. The hashes have to be those of a rehearsal
whose sites draw nonces of their own, and of one with sums = "plain". No site may be asked for a sum twice.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from local_federation import MODELS, SPLITS, LocalFederation

POLICY = """
[policy]
allow = ["model", "scores", "class-counts", "class-statistics"]
"""
HEADS = ["method=fed3r+fed-lda", "model=random-conv", "rounds=0"]
SUMS = 3
"""That HEADS ask for: class counts, feature statistics, and balanced ones."""
PRIOR = ["method=fedshift", "model=mlp-bn", "rounds=1"]
Lap = Callable[[str], None]


def same_hashes(summaries: Mapping[str, Mapping[str, Any]]) -> bool:
    """Print the hashes of runs, by what they are, and return whether all are the same."""
    for name, summary in summaries.items():
        hashes = [f"{part} {(value or 'null')[:16]}" for part, value in summary["hash"].items()]
        print(f"{name}: {', '.join(hashes)}", flush=True)
    first, *others = [summary["hash"] for summary in summaries.values()]
    return all(other == first for other in others)


def training(federation: LocalFederation, stated: argparse.Namespace, lap: Lap) -> bool:
    """Train between sites and in a rehearsal, and return whether both have the same hashes."""
    run = [
        f"method={stated.method}",
        f"rounds={stated.rounds}",
        f"model={MODELS[stated.dataset]}",
    ]
    with federation.at_work():
        lap(f"{len(federation.places)} sites are online")
        trained = federation.run(run)
        lap(f"{stated.rounds} rounds")
    return same_hashes({"federation": trained, "rehearsal": federation.rehearse(run)})


def heads(federation: LocalFederation, lap: Lap) -> bool:
    """Compute heads from masked sums, then train with the masked prior, and return whether all is as it should be."""
    runs = {
        "heads": HEADS,
        "fedshift, seed 0": [*PRIOR, "seed=0"],
        "fedshift, seed 1": [*PRIOR, "seed=1"],
    }
    trained: dict[str, dict[str, Any]] = {}
    with federation.at_work():
        lap(f"{len(federation.places)} sites are online")
        for name, run in runs.items():
            trained[name] = federation.run(run)
            lap(name)
    right = asked_once(federation)

    masked = federation.copied_sites("masked")
    plain = federation.copied_sites("plain", with_plain_sums)
    for name, run in runs.items():
        summaries = {
            f"{name}: federation": trained[name],
            f"{name}: rehearsal": federation.rehearse(run, "rehearsal", masked),
            f"{name}: plain sums": federation.rehearse(run, "plain-rehearsal", plain),
        }
        right = same_hashes(summaries) and right
    return right


def with_plain_sums(text: str) -> str:
    """Return the text of federation.toml with sums = "plain"."""
    return f'sums = "plain"\n{text}'


def asked_once(federation: LocalFederation) -> bool:
    """Print what each site's audit log has of sums, and return whether it was asked for each sum once."""
    right = True
    for name, place in federation.places.items():
        lines = (place / "state/audit.jsonl").read_text().splitlines()
        events = [json.loads(line)["event"] for line in lines]
        counted = {
            event: events.count(event) for event in ("summed", "sum repeated", "sum refused")
        }
        print(f"{name}: {counted}", flush=True)
        right = right and counted == {"summed": SUMS, "sum repeated": 0, "sum refused": 0}
    return right


def main() -> int:
    """Found a federation, train, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dataset", default="digits", choices=sorted(SPLITS))
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--method", default="fedshift+fedbn")
    parser.add_argument(
        "--heads", action="store_true", help="Heads in closed form and a prior from masked sums."
    )
    parser.add_argument(
        "--keep", type=Path, help="An empty folder to work in and to leave as it is then."
    )
    stated = parser.parse_args()
    if stated.heads and stated.dataset != "digits":
        parser.error("--heads is for digits")
    began = time.monotonic()

    def lap(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s: {what}", flush=True)

    with tempfile.TemporaryDirectory(prefix="fedskew-") as temporary:
        policy = POLICY if stated.heads else ""
        federation = LocalFederation(stated.keep or Path(temporary), policy)
        federation.prepare(stated.dataset, stated.sites)
        lap("founded and approved")
        if stated.heads:
            same = heads(federation, lap)
        else:
            same = training(federation, stated, lap)
    lap("the same" if same else "NOT THE SAME")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
