"""A whole federation on this machine, by the commands of docs/deployment.md: right if its hash is the rehearsal's.

    python deploy/try_federation.py [--dataset digits] [--sites 4] [--rounds 6] [--keep FOLDER]

Sites get a folder, a key and a state each, reach the coordinator through gate and TLS, and see their own data alone.
Then the same site folders are played in one process. Exit status 0 only if the two hashes of everything are the same.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from fedskew.engines.processes import free_port

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
SPLITS = {"digits": ["alpha=0.5"], "abide": [f"data-root={os.environ.get('DATA_ROOT', '')}"]}
"""By data set, how it is dealt out; abide's hospitals are its domains."""
MODELS = {"digits": "mlp-bn", "abide": "auto"}
SITE = """\
federation = "federation.toml"
name = "{name}"
data = "npz:data.npz"
state = "state"

[link]
address = "{address}"
key = "node.key"
ca = "ca.crt"
"""
ONLINE = 90.0
"""Seconds until all sites have to be there."""


def command(program: str, *words: str | Path, quiet: bool = False) -> str:
    """Run a command of this clone and return what it prints. Raises SystemExit with its words when it fails."""
    if not quiet:
        print(f"$ {program} {' '.join(map(str, words))}"[:200], flush=True)
    done = subprocess.run([BIN / program, *words], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        sys.exit(f"{program} ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def settings(words: Sequence[str]) -> list[str]:
    """Return settings as the command line takes them."""
    return [part for word in words for part in ("--set", word)]


def begin(folder: Path, sites: Path, address: str) -> list[Path]:
    """Found the federation: certificates, keys, the agreement, and every site's approval. Return the sites' folders."""
    skeleton = (sites / "federation.toml").read_text()
    agreed = {key: re.findall(rf"^{key} = (.*?)(?:  #.*)?$", skeleton, re.MULTILINE)[0] for key in
              ("classes", "input-shape", "mean", "std")}  # fmt: skip
    lists = {key: ",".join(map(str, json.loads(agreed[key]))) for key in ("classes", "mean", "std")}
    shape = json.loads(agreed["input-shape"])
    words = ["--name", "try", "--address", address, "--listen", "127.0.0.1", "--input-shape", shape]
    words += [word for key, text in lists.items() for word in (f"--{key}", text)]
    command("fedskew", "federation", "new", folder, *words)
    places = sorted(path.parent for path in sites.glob("*/data.npz"))
    for place in places:
        key = command("fedskew-site", "key", place / "node.key", "--name", place.name)
        command("fedskew", "federation", "add", folder, place.name, re.findall(r'^key = "(.*)"$', key, re.MULTILINE)[0])
    for place in places:
        for file in ("federation.toml", "ca.crt"):
            shutil.copy(folder / file, place)
        (place / "site.toml").write_text(SITE.format(name=place.name, address=address))
        command("fedskew-site", "approve", place / "federation.toml", ROOT, "--site", place / "site.toml", "--yes")
    return places


def main() -> int:
    """Found a federation, train, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dataset", default="digits", choices=sorted(SPLITS))
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--method", default="fedshift+fedbn")
    parser.add_argument("--keep", type=Path, help="An empty folder to work in and to leave as it is then.")
    stated = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fedskew-") as temporary:
        work = (stated.keep or Path(temporary)).resolve()
        sites, folder = work / "sites", work / "coordinator"
        many = [] if stated.dataset == "abide" else ["--sites", str(stated.sites)]
        command("fedskew", "data", "split", stated.dataset, sites, *many, *settings(SPLITS[stated.dataset]))
        places = begin(folder, sites, f"127.0.0.1:{free_port()}")
        run = [f"method={stated.method}", f"rounds={stated.rounds}", f"model={MODELS[stated.dataset]}"]
        running: list[subprocess.Popen[bytes]] = []
        try:
            command("fedskew", "federation", "up", folder)
            for place in places:
                with (place / "start.log").open("wb") as log:
                    words = [BIN / "fedskew-site", "start", "--site", place / "site.toml"]
                    running.append(subprocess.Popen(words, stdout=log, stderr=log, cwd=place))
            wait_for_sites(folder, len(places))
            ready = time.monotonic()
            trained = json.loads(
                command("fedskew", "federation", "run", folder, "--results", work / "results", "--json", *settings(run))
            )
            print(f"{len(places)} sites, {stated.rounds} rounds: {time.monotonic() - ready:.0f} s", flush=True)
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait(timeout=20)
            command("fedskew", "federation", "down", folder)
        run = settings([f"dataset=sites:{folder / 'federation.toml'}", *run])
        rehearsal = ["--sites", sites, "--results", work / "rehearsal", "--json", *run]
        rehearsed = json.loads(command("fedskew", "run", *rehearsal))
    same = trained["hash"] == rehearsed["hash"]
    for name, summary in (("federation", trained), ("rehearsal", rehearsed)):
        print(f"{name}: " + ", ".join(f"{part} {(value or 'null')[:16]}" for part, value in summary["hash"].items()))
    print(f"{'the same' if same else 'NOT THE SAME'}, {time.monotonic() - began:.0f} s in all")
    return 0 if same else 1


def wait_for_sites(folder: Path, sites: int) -> None:
    """Return once all sites are online. Raises SystemExit when they are not in time."""
    deadline = time.monotonic() + ONLINE
    while time.monotonic() < deadline:
        status = subprocess.run(
            [BIN / "fedskew", "federation", "status", folder, "--json"], capture_output=True, text=True, cwd=ROOT
        )
        states = json.loads(status.stdout or "{}")
        if list(states.values()) == ["online"] * sites:
            return
        time.sleep(1)
    sys.exit(f"after {ONLINE:g} s: {status.stdout} {status.stderr}")


if __name__ == "__main__":
    sys.exit(main())
