"""The rows of the table "Faults": each does something to a run and looks at what became of it."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from local_federation import Job

from faults.stage import BASE, LINK, NUMBER, TRAIN, VICTIM, Stage, seed_of, shell, until
from fedskew.federation.services import GATE, SERVER_APP, SUPERLINK

SLOW = "local-epochs=60"
"""A training that can be met: some seconds."""
BACK, LONGER = 75.0, 5.0
"""Seconds in which a SuperNode has to be back, and by which a round may be longer without a site."""


@dataclass
class Outcome:
    """What became of a fault."""

    seconds: float
    """Until everything was at work again, or the run went on."""
    seen: str
    problems: list[str] = field(default_factory=list)

    def expect(self, holds: bool, problem: str) -> None:
        """Note a problem where something does not hold."""
        if not holds:
            self.problems.append(problem)


def same(stage: Stage, outcome: Outcome, job: Job, name: str, *words: str, everybody: bool = True) -> Outcome:
    """Compare the run's hash with that of the run in one process in which the same sites miss the same rounds."""
    trained = job.finish()
    absent = {record["round"]: set(range(len(stage.names))) - set(record["clients"]) for record in job.records()}
    missed = sorted(round for round, sites in absent.items() if sites)
    outcome.expect(not (everybody and missed), f"rounds {missed} were without a site")
    if missed and not everybody:
        names = sorted(stage.names[site] for site in set().union(*absent.values()))
        outcome.seen += f", rounds {missed} without {', '.join(names)}"
    twin = stage.twin(job, name, *words)
    equal = trained["hash"]["all"] == twin["hash"]["all"]
    outcome.expect(equal, f"hash {trained['hash']['all']}, and {twin['hash']['all']} in one process")
    outcome.problems += stage.leftovers(job)
    return outcome


def supernode_killed(stage: Stage) -> Outcome:
    """SuperNode -9; it has to be taken back by itself."""
    before = stage.supernode_says("SuperNode ID")
    stage.of_victim("flower-supernode", LINK).kill()
    began = time.monotonic()
    until(lambda: stage.supernode_says("SuperNode ID") > before or None, "the SuperNode is not back")
    outcome = Outcome(time.monotonic() - began, "taken back by itself")
    outcome.expect(outcome.seconds <= BACK, f"back after {outcome.seconds:.0f} s")
    return outcome


def supernode_idle(stage: Stage, name: str) -> Outcome:
    """SuperNode -9 while idle."""
    return same(stage, supernode_killed(stage), stage.begin(name, "rounds=3"), name, "rounds=3")


def supernode_training(stage: Stage, name: str) -> Outcome:
    """SuperNode -9 while training."""
    words = "rounds=6", SLOW
    job = stage.begin(name, *words)
    stage.wait_for_training(job, 2)
    return same(stage, supernode_killed(stage), job, name, *words, everybody=False)


def executor_training(stage: Stage, name: str) -> Outcome:
    """Executor -9 while training, started again."""
    words = "rounds=4", SLOW
    job = stage.begin(name, *words)
    stage.wait_for_training(job, 2)
    stage.federation.processes[TRAIN].kill()
    stage.federation.processes[TRAIN].wait()
    began = time.monotonic()
    stage.half("train")
    job.wait_for_round(2)
    return same(stage, Outcome(time.monotonic() - began, "asked again"), job, name, *words)


def away(stage: Stage, name: str) -> Outcome:
    """SuperNode away for three rounds, then back; scaffold, so that there are controls beside batch norm."""
    words = "rounds=16", "method=scaffold+fedbn", SLOW
    job = stage.begin(name, *words)
    job.wait_for_round(2)
    stage.halt(LINK)
    number = len(job.records())
    job.wait_for_round(number + 4)
    stage.half("link")
    began = time.monotonic()

    def back() -> bool | None:
        job.check()
        last = job.records()[-1]
        return True if NUMBER in last["clients"] and last["round"] > number + 4 else None

    until(back, f"{VICTIM} is not in a round again")
    outcome = Outcome(time.monotonic() - began, "asked again")
    job.finish()
    records = job.records()
    seconds = {record["round"]: record["seconds"]["round"] for record in records[1:]}
    without = [record["round"] for record in records[1:] if NUMBER not in record["clients"]]
    usual = max(seconds[record] for record in seconds if record not in without)
    longest = max(seconds[record] for record in without[1:])  # the first waits node-wait, once
    outcome.expect(longest <= usual + LONGER, f"a round without it took {longest:.0f} s, one with it {usual:.0f} s")
    outcome.seen += f"; known to be away, a round takes {longest:.1f} s (at most {usual:.1f} s with it)"
    return same(stage, outcome, job, name, *words, everybody=False)


def service_killed(program: str) -> Callable[[Stage, str], Outcome]:
    """Return the row in which a process of the coordinator's is killed in round 3."""

    def row(stage: Stage, name: str) -> Outcome:
        words, before = ("rounds=6", SLOW), stage.trainings()
        job = stage.begin(name, *words)
        job.wait_for_round(2)
        stage.service(program).kill()
        began = time.monotonic()
        if program != SERVER_APP:
            stage.federation.up()
        job.wait_for_round(3)
        outcome = Outcome(time.monotonic() - began, "the run goes on by itself")
        job.finish()
        asked = stage.trainings() - before
        outcome.expect(asked <= 7, f"{VICTIM} trained {asked} times for 6 rounds")
        outcome.seen += f", {asked - 6} rounds repeated"
        return same(stage, outcome, job, name, *words)

    return row


def line_cut(seconds: float) -> Callable[[Stage, str], Outcome]:
    """Return the row in which the victim's line is down for a while."""

    def row(stage: Stage, name: str) -> Outcome:
        words = "rounds=6", SLOW
        job = stage.begin(name, *words)
        job.wait_for_round(2)
        with stage.line.cut():
            time.sleep(seconds)
        began, number = time.monotonic(), len(job.records())
        job.wait_for_round(min(number + 1, 6))
        outcome = Outcome(time.monotonic() - began, "nothing is lost")
        return same(stage, outcome, job, name, *words)

    return row


def everything_killed(stage: Stage, name: str) -> Outcome:
    """Everything -9 at once, then up, start and run again."""
    words = "rounds=6", SLOW
    job = stage.begin(name, *words)
    job.wait_for_round(2)
    job.process.kill()
    stage.kill_all()
    job.process.wait()
    began = time.monotonic()
    stage.revive()
    again = stage.begin(name, *words)
    again.wait_for_round(3)
    return same(stage, Outcome(time.monotonic() - began, "goes on"), again, name, *words)


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[None]:
    """Within this context a folder is a disk of its own, with what was in it."""
    place.mkdir(exist_ok=True)
    kept = place.with_name(place.name + "-kept")
    shutil.copytree(place, kept)
    shell("mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(place))
    shutil.copytree(kept, place, dirs_exist_ok=True)
    try:
        yield
    finally:
        after = place.with_name(place.name + "-after")
        shutil.copytree(place, after)
        shell("umount", str(place))
        shutil.rmtree(place)
        after.rename(place)
        shutil.rmtree(kept)


def fill(place: Path) -> Path:
    """Fill a disk, and return the file that does it."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (2**16, 2**12, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                pass
    return filler


def site_disk_full(stage: Stage, name: str) -> Outcome:
    """The disk of a site's state full."""
    words = "rounds=14", SLOW
    stage.halt(TRAIN, LINK)
    with small_disk(stage.place / "state", "16m"):
        stage.revive()
        job = stage.begin(name, *words)
        job.wait_for_round(2)
        filler, number = fill(stage.place / "state"), len(job.records())
        job.wait_for_round(number + 3)
        failures = [record["failures"].get(str(NUMBER), "") for record in job.records()[number + 1 :]]
        filler.unlink()
        began = time.monotonic()
        until(lambda: job.check() or NUMBER in job.records()[-1]["clients"] or None, f"{VICTIM} is not back")
        outcome = Outcome(time.monotonic() - began, f"left out: {failures[-1]!r}")
        outcome.expect(all(failures), f"{VICTIM} is not left out: {failures}")
        same(stage, outcome, job, name, *words, everybody=False)
        stage.halt(TRAIN, LINK)
    return outcome


def server_disk_full(stage: Stage, name: str) -> Outcome:
    """The disk of the server's results full."""
    words = "rounds=6", SLOW
    place = stage.federation.work / name
    with small_disk(place, "4m"):
        job = stage.begin(name, *words)
        job.wait_for_round(2)
        filler = fill(place)
        code = job.process.wait(300)
        sentence = job.words.strip().splitlines()[-1] if job.words.strip() else ""
        filler.unlink()
        began = time.monotonic()
        again = stage.begin(name, *words)
        again.wait_for_round(3)
        outcome = Outcome(time.monotonic() - began, f"stops ({code}): {sentence[:160]!r}")
        outcome.expect(code != 0, "the run did not stop")
        return same(stage, outcome, again, name, *words)


def memory_damaged(damage: Callable[[Path], None]) -> Callable[[Stage, str], Outcome]:
    """Return the row in which the victim's memory file is damaged between two starts of a run."""

    def row(stage: Stage, name: str) -> Outcome:
        words = "rounds=5", SLOW
        job = stage.begin(name, *words)
        job.wait_for_round(2)
        job.process.kill()
        job.process.wait()
        process = stage.service(SERVER_APP)
        process.kill()
        process.wait(10)
        stage.wait_until_idle()
        number = len(job.records())
        file = next((stage.place / "state" / "runs" / job.folder.name).rglob(f"round-{number:06d}.safetensors"))
        damage(file)
        again = stage.begin(name, *words)
        began = time.monotonic()
        again.wait_for_round(number + 1)
        outcome = Outcome(time.monotonic() - began, "")
        again.finish()
        failures = [record["failures"].get(str(NUMBER), "") for record in again.records()[number:]]
        outcome.seen = f"left out: {failures[0]!r}"
        outcome.expect(all("memory" in failure for failure in failures), f"{VICTIM} is not left out: {failures}")
        return same(stage, outcome, again, name, *words, everybody=False)

    return row


def flip(file: Path) -> None:
    """Change one bit of a file."""
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)


@contextmanager
def hostile(stage: Stage, kind: str) -> Iterator[None]:
    """Within this context site-3 is one that sends something else."""
    name = stage.names[-1]
    stage.halt(name)
    place = stage.federation.places[name]
    environment = os.environ | {"HOSTILE": kind}
    words = [sys.executable, str(Path(__file__).with_name("hostile_site.py")), "start", "--site", "site.toml"]
    with (place / "start.log").open("ab") as log:
        stage.federation.processes[name] = subprocess.Popen(words, stdout=log, stderr=log, cwd=place, env=environment)
    stage.federation.wait_for_sites()
    try:
        yield
    finally:
        stage.halt(name)


def sends(kind: str) -> Callable[[Stage, str], Outcome]:
    """Return the row in which a site sends something that is refused."""

    def row(stage: Stage, name: str) -> Outcome:
        words = ("rounds=3",)
        with hostile(stage, kind):
            job = stage.begin(name, *words)
            job.finish()
        last = len(stage.names) - 1
        failures = [record["failures"].get(str(last), "") for record in job.records()]
        outcome = Outcome(0.0, f"left out: {failures[0][:100]!r}")
        outcome.expect(all(last not in record["clients"] for record in job.records()), "it was taken")
        outcome.expect(all(failures), f"not named: {failures}")
        return same(stage, outcome, job, name, *words, everybody=False)

    return row


def tenfold(stage: Stage, name: str) -> Outcome:
    """A site sends ten times its update, and the median bounds it."""
    words = ["rounds=3", "method=median"]
    with hostile(stage, "tenfold"):
        job = stage.begin(name, *words)
        job.finish()
    last = len(stage.names) - 1
    taken = all(last in record["clients"] for record in job.records())
    if not taken:
        return Outcome(0.0, "", [f"refused: {[record['failures'] for record in job.records()]}"])
    updates = [{update["client"]: update for update in record["updates"]} for record in job.records()]
    ratios = [update[last]["norm"] / sorted(u["norm"] for u in update.values())[len(update) // 2] for update in updates]
    outcome = Outcome(0.0, f"norm {ratios[0]:.1f} times the median of the sites'")
    outcome.expect(ratios[0] > 5, "its norm does not stand out")
    rounds, base = range(1, 4), [*BASE, f"seed={seed_of(name)}", *words]
    without, fewer = {(round, last) for round in rounds}, {(round, 0) for round in rounds}
    stage.play(without, f"{name}-without", *base)
    stage.play(without | fewer, f"{name}-fewer", *base)
    far = stage.distance(name, f"{name}-without")
    honest = stage.distance(f"{name}-fewer", f"{name}-without")
    outcome.seen += f"; {far / honest:.2f} times as far as leaving one honest site out"
    outcome.expect(far <= 2 * honest, f"distance {far:.3g}, leaving one honest site out {honest:.3g}")
    outcome.problems += stage.leftovers(job)
    return outcome


def below_minimum(stage: Stage, name: str) -> Outcome:
    """Three sites of four gone, where two make a round."""
    words = "rounds=8", SLOW
    job = stage.begin(name, *words)
    job.wait_for_round(2)
    gone = stage.names[1:]
    stage.halt(LINK, TRAIN, *(site for site in gone if site != VICTIM))
    code = job.process.wait(300)
    sentence = job.words.strip().splitlines()[-1]
    stage.revive()
    began = time.monotonic()
    number = len(job.records())
    again = stage.begin(name, *words)
    again.wait_for_round(number + 1)
    outcome = Outcome(time.monotonic() - began, f"stops ({code}): {sentence[:200]!r}")
    outcome.expect(code != 0, "the run did not stop")
    outcome.expect(all(site in sentence for site in gone), f"does not name {gone}")
    return same(stage, outcome, again, name, *words, everybody=False)


ROWS: Mapping[int, Sequence[tuple[str, Callable[[Stage, str], Outcome]]]] = {
    1: [("SuperNode -9 while idle", supernode_idle)],
    2: [("SuperNode -9 while training", supernode_training)],
    3: [("executor -9 while training", executor_training)],
    4: [("SuperNode away for three rounds, then back", away)],
    5: [("ServerApp -9", service_killed(SERVER_APP))],
    6: [("SuperLink -9, started again", service_killed(SUPERLINK))],
    7: [("gate -9, started again", service_killed(GATE))],
    8: [("line of one site down for 30 s", line_cut(30))],
    9: [("line of one site down for 90 s", line_cut(90))],
    10: [("everything -9 at once, `up` and `run` again", everything_killed)],
    11: [("disk full at a site", site_disk_full), ("disk full at the server", server_disk_full)],
    12: [("a site's memory file deleted", memory_damaged(Path.unlink)),
         ("one bit of it changed", memory_damaged(flip))],
    13: [("a site sends NaN", sends("nan")), ("wrong shapes", sends("shapes")), ("nothing", sends("nothing")),
         ("ten times its update", tenfold)],
    14: [("below min-sites", below_minimum)],
}  # fmt: skip
"""By number, what is done, and who does it."""
