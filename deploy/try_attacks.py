"""Run every attack of docs/explanation/security.md on a federation; right if each one is refused as it must be.

    python deploy/try_attacks.py [--write docs/explanation/security.md] [--rounds 12] [--keep FOLDER] [--row WORDS...]
                                  [--allow-skipped]

Three sites train on digits through gateway and TLS. One of them is a rogue: it trains honestly, and answers for another
one as well. Each attack stands beside an honest request, its control, which has to pass first. A refusal counts only
if it is of the expected kind: the HTTP status, the exception's type or the event, with the words of its reason.

Exit status 0 only if each control passed, each attack was refused as expected, no row was skipped (--allow-skipped
lets a machine without root pass), and the hash of the training equals the rehearsal's, which nobody attacked.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from app_federation import AppFederation
from attacks import (
    any_app,
    at_the_gate,
    by_files,
    by_hand,
    by_masked_sums,
    by_own_code,
    by_the_coordinator,
    by_the_superlink,
    by_users,
    impostors,
    replies,
)
from attacks.stage import (
    Attack,
    ControlFailed,
    Refusal,
    Skipped,
    Stage,
    Succeeded,
    Untried,
    shown,
)
from local_federation import BIN, MODELS, LocalFederation
from stock_nodes import ENVIRONMENT

BEGIN, END = "<!-- make attacks -->", "<!-- end of make attacks -->"
APP_MARKS = ("<!-- make attacks, other apps -->", "<!-- end of make attacks, other apps -->")
METHOD = "fedshift+fedbn"
DURING = [*replies.DURING, *at_the_gate.ATTACKS, *by_users.ATTACKS]
"""What is tried while the sites train."""
ROGUE_SITE = Path(__file__).parent / "attacks" / "rogue_site.py"
AFTER = [
    *by_the_coordinator.AT_WORK_ATTACKS,
    *by_the_superlink.AT_WORK_ATTACKS,
    *impostors.ATTACKS,
]
"""What is tried when they have, while the federation is still up."""
LAST = by_hand.ATTACKS
"""What is tried then by sites that this script operates by hand; the last of them removes a site."""
IN_PROCESS = [
    *by_the_coordinator.ATTACKS,
    *by_the_superlink.ATTACKS,
    *by_masked_sums.ATTACKS,
    *by_own_code.ATTACKS,
    *by_files.ATTACKS,
    *replies.IN_PROCESS,
]
"""What is tried on the same code, without a network."""
APPS = ("flower-quickstart", "flower-transformer")
"""The examples that three more sites each run as an app other than FedSkew's."""
REFUSED, SKIPPED = "refused", "skipped"


@dataclass(frozen=True)
class Row:
    """What became of an attack: REFUSED as it has to be, SKIPPED, or what went wrong, in capitals."""

    attack: Attack
    became: str
    passed: str
    """The line that shows that the honest request passed; empty where it did not."""
    refused: str
    """The lines that refused the attack, or why there are none."""
    kinds: str = ""
    """How it was refused, one kind per refusal."""


def attempt(attack: Attack, stage: Stage, over: Callable[[], bool] = lambda: False) -> Row:
    """Make the honest request and then the attack, and return what became of both.

    `over` says whether what the attack has to meet, the training, has ended; then it shows nothing.
    """
    row = compared(attack, stage)
    if over() and row.became != SKIPPED:
        row = Row(
            attack,
            "NOT TRIED",
            row.passed,
            "the training was over before this; more --rounds",
        )
    passed = shown(row.passed.splitlines(), stage)
    row = Row(attack, row.became, passed, shown(row.refused.splitlines(), stage), row.kinds)
    print(f"{row.became:<14} {attack.what} ({attack.who})", flush=True)
    print(f"    honest: {row.passed}\n    attack: {row.kinds}: {row.refused}", flush=True)
    return row


def compared(attack: Attack, stage: Stage) -> Row:
    """Return what became of an attack, as it was said."""
    try:
        passed = attack.honest(stage)
        if not passed:
            raise ControlFailed("the control shows nothing")
    except Skipped as reason:
        return Row(attack, SKIPPED, "", str(reason))
    except (
        Exception
    ) as error:  # whatever stops the honest request, the attack beside it shows nothing
        return Row(attack, "CONTROL FAILED", "", described(error))
    try:
        refusals = attack.attempt(stage)
    except Skipped as reason:
        return Row(attack, SKIPPED, passed, str(reason))
    except Succeeded as reason:
        return Row(attack, "NOT REFUSED", passed, str(reason))
    except Exception as error:  # an attack that breaks has shown nothing
        return Row(attack, "NOT TRIED", passed, described(error))
    kinds = ", ".join(dict.fromkeys(refusal.kind for refusal in refusals))
    lines = "\n".join(refusal.line for refusal in refusals)
    if wrong := difference(refusals, attack.expected):
        return Row(attack, "WRONG REFUSAL", passed, f"{wrong}\n{lines}", kinds)
    return Row(attack, REFUSED, passed, lines, kinds)


def described(error: Exception) -> str:
    """Return an exception in one line."""
    if isinstance(error, (ControlFailed, Untried)):
        return str(error)
    return f"{type(error).__name__}: {error}"


def difference(refusals: Sequence[Refusal], expected: Sequence[Refusal]) -> str:
    """Return how refusals differ from those that are expected; empty where they do not."""
    if not expected:
        return "the row does not say how it has to be refused"
    if len(refusals) != len(expected):
        return f"{len(refusals)} refusals, and {len(expected)} are expected"
    for is_so, has_to_be in zip(refusals, expected, strict=True):
        if not is_so.is_as(has_to_be):
            return f"the refusal is {is_so.kind}, and has to be {has_to_be.kind} with {has_to_be.line!r}"
    return ""


def status_of(rows: Sequence[Row], undisturbed: bool, allow_skipped: bool) -> tuple[int, str]:
    """Return the exit status of a table, and the sentence that goes with it."""
    count = dict.fromkeys((REFUSED, SKIPPED), 0)
    for row in rows:
        count[row.became] = count.get(row.became, 0) + 1
    tally = ", ".join(f"{number} {became}" for became, number in count.items())
    wrong = len(rows) - count[REFUSED] - count[SKIPPED]
    reasons = []
    if not rows:
        reasons.append("no row was tried")
    if wrong:
        reasons.append(f"{wrong} rows were not refused as they have to be, or their control failed")
    if count[SKIPPED] and not allow_skipped:
        causes = "; ".join(sorted({row.refused for row in rows if row.became == SKIPPED}))
        reasons.append(
            f"{count[SKIPPED]} rows were skipped, which shows nothing ({causes}): mend that, "
            "or give --allow-skipped where it cannot be mended"
        )
    if not undisturbed:
        reasons.append("the training's hash is not the rehearsal's")
    sentence = f"{len(rows)} rows: {tally}."
    if reasons:
        return 1, f"{sentence} FAILED: {'; '.join(reasons)}."
    return 0, sentence


def table(rows: Sequence[Row]) -> str:
    """Return the attacks as a table."""
    lines = [
        "| what is tried | by | | the honest request, which passes | refused with | the line that refuses it |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        where = row.attack.where if row.became == REFUSED else f"**{row.became}**"
        cells = [
            row.attack.what,
            row.attack.who,
            where,
            code(row.passed),
            row.kinds,
            code(row.refused),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def code(text: str) -> str:
    """Return lines of a log for one cell of a table."""
    lines = (line.replace("|", "/").replace("`", "'").strip() for line in text.splitlines())
    return "<br>".join(f"`{line}`" for line in lines if line)


def write(path: Path, text: str, marks: tuple[str, str] = (BEGIN, END)) -> None:
    """Put a text between the markers of a file."""
    begin, end = marks
    before, _, rest = path.read_text().partition(begin)
    path.write_text(f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}")


def start_rogue(place: Path) -> subprocess.Popen[bytes]:
    """Start the rogue site in place of `fedskew-site`."""
    words = [sys.executable, str(ROGUE_SITE), "start", "--site", str(place / "site.toml")]
    with (place / "start.log").open("ab") as log:
        return subprocess.Popen(words, stdout=log, stderr=log, cwd=place)


def train(federation: LocalFederation, run: list[str]) -> subprocess.Popen[str]:
    """Begin to train; return when the first round has its record."""
    with (federation.work / "train.log").open("wb") as log:
        words = [str(BIN / "fedskew"), *federation.run_words(run)]
        training = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True)
    while training.poll() is None and not list(
        (federation.work / "results").glob("*/rounds.jsonl")
    ):
        time.sleep(0.3)
    return training


def attack_at_work(
    federation: LocalFederation,
    run: list[str],
    words: Sequence[str],
) -> tuple[list[Row], dict[str, Any]]:
    """Train in a federation that is attacked meanwhile and afterwards; return the rows and the training's summary.

    `words` choose the rows: those that hold one of them, or all of them where there are none.
    """

    def chosen(attacks: Sequence[Attack]) -> list[Attack]:
        return [
            attack for attack in attacks if not words or any(word in attack.what for word in words)
        ]

    rows = list[Row]()
    trained = dict[str, Any]()
    began = time.monotonic()
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
        rows += [
            attempt(attack, stage, lambda: training.poll() is not None) for attack in chosen(DURING)
        ]
        trained.update(json.loads(training.communicate()[0] or "{}"))
        print(
            f"{time.monotonic() - began:.0f} s: the training has ended with {training.returncode}",
            flush=True,
        )
        rows += [attempt(attack, stage) for attack in chosen(AFTER)]
        if last := chosen(LAST):
            with by_hand.operated_by_hand(stage):
                rows += [attempt(attack, stage) for attack in last]
    finally:
        federation.down()
    rows += [attempt(attack, stage) for attack in chosen(IN_PROCESS)]
    return rows, trained


def attack_apps(work: Path, words: Sequence[str], names: Sequence[str]) -> list[Row]:
    """Attack federations that run other Flower apps, and return the rows; `words` choose them as above."""
    rows = list[Row]()
    # Both ServerApps compute with as many threads: sums of floats depend on it.
    os.environ.update(ENVIRONMENT)
    for name in names:
        chosen = [
            attack
            for attack in any_app.attacks(name)
            if not words or any(word in attack.what for word in words)
        ]
        if not chosen:
            continue
        if name == "flower-transformer" and find_spec("transformers") is None:
            reason = "transformers is not installed: pip install 'fedskew[transformers]'"
            rows += [Row(attack, SKIPPED, "", reason) for attack in chosen]
            print(f"{SKIPPED:<14} {len(chosen)} rows of {name}: {reason}", flush=True)
            continue
        federation = AppFederation(work / name, name)
        federation.prepare_app()
        stage: Any = any_app.AppStage(federation)
        with federation.at_work():
            rows += [attempt(attack, stage) for attack in chosen]
    return rows


def main() -> int:
    """Make a federation, train and attack it, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--write", type=Path, help="A file with the markers, which gets the table.")
    parser.add_argument(
        "--keep", type=Path, help="An empty folder to work in and to leave as it is then."
    )
    parser.add_argument(
        "--row",
        nargs="+",
        default=[],
        metavar="WORDS",
        help="Only rows whose name holds such words.",
    )
    parser.add_argument(
        "--only-app",
        nargs="+",
        default=[],
        choices=APPS,
        help="Only the rows of other Flower apps.",
    )
    parser.add_argument(
        "--allow-skipped",
        action="store_true",
        help="Exit 0 though rows were skipped, which need root or a package.",
    )
    stated = parser.parse_args()
    if stated.write and (stated.row or 0 < len(stated.only_app) < len(APPS)):
        parser.error("--write takes the whole table, and --row and --only-app make a part of it")
    if stated.only_app:
        with tempfile.TemporaryDirectory(prefix="fedskew-") as temporary:
            rows = attack_apps(stated.keep or Path(temporary), stated.row, stated.only_app)
        status, sentence = status_of(rows, True, stated.allow_skipped)
        print(sentence, flush=True)
        if stated.write:
            write(stated.write, f"{table(rows)}\n\n{sentence}", APP_MARKS)
        return status
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fedskew-") as temporary:
        federation = LocalFederation(stated.keep or Path(temporary))
        federation.prepare("digits", 3)
        run = [f"method={METHOD}", f"rounds={stated.rounds}", f"model={MODELS['digits']}"]
        rows, trained = attack_at_work(federation, run, stated.row)
        app_rows = attack_apps(federation.work / "apps", stated.row, APPS)
        rehearsed = federation.rehearse(run)
    same = bool(trained) and trained["hash"] == rehearsed["hash"]
    hashes = " and ".join(
        f"{name} `{str(rehearsed['hash'][name])[:16]}`" for name in rehearsed["hash"]
    )
    undisturbed = f"The training is {'' if same else '**not** '}the rehearsal's, which nobody attacked: {hashes}."
    status, sentence = status_of([*rows, *app_rows], same, stated.allow_skipped)
    print(f"{undisturbed} {time.monotonic() - began:.0f} s\n{sentence}", flush=True)
    if stated.write:
        write(stated.write, f"{table(rows)}\n\n{undisturbed}\n\n{sentence}")
        write(stated.write, table(app_rows), APP_MARKS)
    return status


if __name__ == "__main__":
    sys.exit(main())
