"""Run the federation of docs/guides/deployment.md on this machine; right if its hash is the rehearsal's.

    python deploy/try_federation.py [--dataset digits] [--sites 4] [--rounds 6] [--heads] [--keep FOLDER]

Sites get a folder, a key and a state, reach the coordinator through its door by TLS, and see their own data alone.
Then the same site folders are run in one process. Exit status 0 only if the two hashes of everything are the same.

With --heads the sites agree on a backbone by its hash, each with a file of its own, and class counts and feature
statistics are summed under masks: first heads in closed form are computed without a round, then fedshift trains one
with two seeds. The hashes have to be those of a rehearsal whose sites draw nonces of
their own, and of one with sums = "plain". No site may be asked for a sum twice. Last, one site's file becomes another
one, and the run has to be refused with that site's name. The backbone's weights are drawn, as only bits are compared.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from local_federation import MODELS, SPLITS, LocalFederation
from safetensors.torch import save_file
from torchvision import models

from client_app.models.backbone import sha256_of

POLICY = """
[policy]
allow = ["model", "scores", "class-counts", "class-statistics"]
"""
BACKBONE = "torchvision:resnet18"
"""Its drawn weights give features that the grid can tell apart, as those of smaller networks do not."""
WEIGHTS = "backbone.safetensors"
"""The file of its weights at the coordinator, and each site's own copy of it."""
FEATURES = [f"model={BACKBONE}", "freeze=all", "image-side=32"]
HEADS = ["method=fed3r+fed-lda", *FEATURES, "rounds=0"]
SUMS = 3
"""That all runs ask for together: class counts, feature statistics, and balanced ones."""
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
    weights = f"weights={federation.work / WEIGHTS}"
    runs = {
        "heads": [*HEADS, weights],
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
        # Copies for the rehearsals, before a site's file is replaced.
        masked = federation.copied_sites("masked")
        plain = federation.copied_sites("plain", with_plain_sums)
        right = refused_by_name(federation, runs["heads"]) and right
        lap("a site with another file of weights")
    for name, run in runs.items():
        summaries = {
            f"{name}: federation": trained[name],
            f"{name}: rehearsal": federation.rehearse(run, "rehearsal", masked),
            f"{name}: plain sums": federation.rehearse(run, "plain-rehearsal", plain),
        }
        right = same_hashes(summaries) and right
    return right


def drawn_weights(file: Path, seed: int) -> str:
    """Write weights of the backbone, drawn with a seed, and return their sha256."""
    torch.manual_seed(seed)
    network = models.get_model(BACKBONE.removeprefix("torchvision:"), weights=None)
    save_file(network.state_dict(), file)
    return sha256_of(str(file))


def prepare_heads(federation: LocalFederation, dataset: str, sites: int) -> None:
    """Found a federation that agrees on a backbone, and give each site its own file of the weights."""
    federation.split(dataset, sites)
    file = federation.work / WEIGHTS
    sha256 = drawn_weights(file, seed=1)
    for place in federation.places.values():
        shutil.copy(file, place / WEIGHTS)
    agreed = f'backbone = "{BACKBONE}"\nweights = "{sha256}"\n'
    federation.found(agree=lambda text: agreed + text)


def refused_by_name(federation: LocalFederation, run: list[str]) -> bool:
    """Let the last site's file be another one, and return whether a new run is refused with its name.

    The coordinator learns the name alone: both hashes stand in the site's own log and in `fedskew-site check`.
    """
    name, place = list(federation.places.items())[-1]
    drawn_weights(place / WEIGHTS, seed=2)
    try:
        federation.run([*run, "seed=7"], "refused")
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())
        print(f"refused: {said}"[:600], flush=True)
        return f"site {name}" in said
    print(f"NOT REFUSED: {name} has another file of weights", flush=True)
    return False


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
        work = stated.keep or Path(temporary)
        if stated.heads:
            federation = LocalFederation(work, POLICY, f'weights = "{WEIGHTS}"\n')
            prepare_heads(federation, stated.dataset, stated.sites)
            lap("founded and approved")
            same = heads(federation, lap)
        else:
            federation = LocalFederation(work)
            federation.prepare(stated.dataset, stated.sites)
            lap("founded and approved")
            same = training(federation, stated, lap)
    lap("the same" if same else "NOT THE SAME")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
