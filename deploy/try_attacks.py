"""Attack a federation while it trains, by every way that docs/security.md names: right if every one is refused.

    python deploy/try_attacks.py [--write docs/security.md] [--rounds 6] [--keep FOLDER]

Three sites train on digits through gate and TLS. One of them is a rogue: it trains honestly, and answers for another
one as well. Meanwhile everything else is tried. Exit status 0 only if each attack was refused, and if the hash of
everything equals the rehearsal's, which nobody attacked.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from attacks import at_the_gate, by_files, by_the_coordinator, by_users, replies
from attacks.stage import AT_WORK, Attack, Skipped, Stage, Succeeded, shown
from local_federation import BIN, MODELS, LocalFederation

BEGIN, END = "<!-- make attacks -->", "<!-- end of make attacks -->"
METHOD = "fedshift+fedbn"
DURING = [*replies.ATTACKS, *at_the_gate.ATTACKS, *by_users.ATTACKS]
"""What is tried while the sites train."""
ROGUE_SITE = Path(__file__).parent / "attacks" / "rogue_site.py"
AFTER = [*by_the_coordinator.ATTACKS, *by_files.ATTACKS]
"""What is tried when they have."""


def attempt(attack: Attack, stage: Stage) -> tuple[str, str]:
    """Try an attack; return what became of it, and the line that says so."""
    try:
        became, line = "refused", attack.play(stage)
    except Skipped as reason:
        became, line = "skipped", str(reason)
    except Succeeded as reason:
        became, line = "NOT REFUSED", str(reason)
    except Exception as error:  # an attack that breaks has shown nothing
        became, line = "NOT TRIED", f"{type(error).__name__}: {error}"
    line = shown(line.splitlines(), stage)
    print(f"{became:<12} {attack.what} ({attack.who}): {line}", flush=True)
    return became, line


def table(rows: list[tuple[Attack, str, str]]) -> str:
    """Return the attacks as a table."""
    lines = ["| what is tried | by | | the line that refuses it |", "|---|---|---|---|"]
    for attack, became, line in rows:
        text = "<br>".join(f"`{part.replace('|', '/').strip()}`" for part in line.splitlines())
        where = attack.where if became == "refused" else f"**{became}**"
        lines.append(f"| {attack.what} | {attack.who} | {where} | {text} |")
    return "\n".join(lines)


def write(path: Path, text: str) -> None:
    """Put a text between the markers of a file."""
    before, _, rest = path.read_text().partition(BEGIN)
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")


def start_rogue(place: Path) -> subprocess.Popen[bytes]:
    """Start the rogue site in place of `fedskew-site`."""
    words = [sys.executable, ROGUE_SITE, "start", "--site", place / "site.toml"]
    with (place / "start.log").open("ab") as log:
        return subprocess.Popen(words, stdout=log, stderr=log, cwd=place)


def train(federation: LocalFederation, run: list[str]) -> subprocess.Popen[str]:
    """Begin to train; return when the first round has its record."""
    with (federation.work / "train.log").open("wb") as log:
        words = [BIN / "fedskew", *federation.run_words(run)]
        training = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True)
    while training.poll() is None and not list(
        (federation.work / "results").glob("*/rounds.jsonl")
    ):
        time.sleep(0.3)
    return training


def main() -> int:
    """Make a federation, train and attack it, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--write", type=Path, help="A file with the markers, which gets the table.")
    parser.add_argument(
        "--keep", type=Path, help="An empty folder to work in and to leave as it is then."
    )
    stated = parser.parse_args()
    began, trained = time.monotonic(), dict[str, Any]()
    rows: list[tuple[Attack, str, str]] = []
    with tempfile.TemporaryDirectory(prefix="fedskew-") as temporary:
        federation = LocalFederation(stated.keep or Path(temporary))
        federation.prepare("digits", 3)
        run = [f"method={METHOD}", f"rounds={stated.rounds}", f"model={MODELS['digits']}"]
        try:
            federation.up()
            stage = Stage(federation)
            rogue = stage.names[at_the_gate.ROGUE]
            federation.start(*(name for name in stage.names if name != rogue))
            federation.processes[rogue] = start_rogue(stage.place(at_the_gate.ROGUE))
            federation.wait_for_sites()
            print(
                f"{time.monotonic() - began:.0f} s: three sites are online, one of them a rogue",
                flush=True,
            )
            training = train(federation, run)
            for attack in DURING:
                rows.append((attack, *attempt(attack, stage)))
            trained.update(json.loads(training.communicate()[0] or "{}"))
            print(
                f"{time.monotonic() - began:.0f} s: the training has ended with {training.returncode}",
                flush=True,
            )
            for attack in (attack for attack in AFTER if attack.where == AT_WORK):
                rows.append((attack, *attempt(attack, stage)))
        finally:
            federation.down()
        for attack in (attack for attack in AFTER if attack.where != AT_WORK):
            rows.append((attack, *attempt(attack, stage)))
        rehearsed = federation.rehearse(run)
    same = bool(trained) and trained["hash"] == rehearsed["hash"]
    hashes = " and ".join(
        f"{name} `{str(rehearsed['hash'][name])[:16]}`" for name in rehearsed["hash"]
    )
    undisturbed = f"The training is {'' if same else '**not** '}the rehearsal's, which nobody attacked: {hashes}."
    refused = sum(became == "refused" for _, became, _ in rows)
    skipped = sum(became == "skipped" for _, became, _ in rows)
    print(
        f"{refused} of {len(rows)} refused, {skipped} skipped. {undisturbed} {time.monotonic() - began:.0f} s"
    )
    if stated.write:
        write(stated.write, f"{table(rows)}\n\n{undisturbed}")
    return 0 if same and refused + skipped == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
