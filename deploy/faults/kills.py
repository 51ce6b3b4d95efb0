"""What is killed with -9: a site's processes, the coordinator's, all at once."""

import time
from collections.abc import Callable

from faults.outcome import SLOW, Outcome, same
from faults.stage import LINK, TRAIN, VICTIM, Stage, until
from fedskew.federation.services import GATEWAY, SERVER_APP, SUPEREXEC

HALTED = 120.0
"""Seconds for which the gate is halted."""
BACK = 75.0
"""Seconds in which a SuperNode has to be back."""


def supernode_killed(stage: Stage) -> Outcome:
    """SuperNode -9; it has to be taken back by itself."""
    before = stage.supernode_says("SuperNode ID")
    stage.of_victim("flower-supernode", LINK).kill()
    began = time.monotonic()
    until(
        lambda: stage.supernode_says("SuperNode ID") > before or None, "the SuperNode is not back"
    )
    outcome = Outcome(time.monotonic() - began, "taken back by itself")
    outcome.expect(outcome.seconds <= BACK, f"back after {outcome.seconds:.0f} s")
    return outcome


def supernode_idle(stage: Stage, name: str) -> Outcome:
    """SuperNode -9 while idle."""
    return same(stage, supernode_killed(stage), stage.begin(name, "rounds=3"), name, "rounds=3")


def supernode_training(stage: Stage, name: str) -> Outcome:
    """SuperNode -9 while training."""
    words = "rounds=4", SLOW
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


def service_killed(program: str) -> Callable[[Stage, str], Outcome]:
    """Return the row in which a process of the coordinator's is killed in round 3."""

    def row(stage: Stage, name: str) -> Outcome:
        words = "rounds=4", "node-wait=20", SLOW  # behind a new gate sites are away for 3 s
        before = stage.trainings()
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
        outcome.expect(asked <= 5, f"{VICTIM} trained {asked} times for 4 rounds")
        outcome.seen += f", {asked - 4} rounds repeated"
        return same(stage, outcome, job, name, *words)

    return row


def superexec_killed(stage: Stage, name: str) -> Outcome:
    """The SuperLink's SuperExec -9 before a run, which then has nobody to begin it."""
    words = ("rounds=3",)
    stage.service(SUPEREXEC).kill()
    began = time.monotonic()
    job = stage.begin(name, *words)
    job.wait_for_round(1)
    outcome = Outcome(time.monotonic() - began, "started again, the run begins by itself")
    outcome.expect(f"{SUPEREXEC} had ended" in job.words, "nothing is said of it")
    return same(stage, outcome, job, name, *words)


def gate_halted(stage: Stage, name: str) -> Outcome:
    """The gate halted in round 3 for two minutes, in which flwr takes every site for lost."""
    words = "rounds=4", "node-wait=90", SLOW
    job = stage.begin(name, *words)
    job.wait_for_round(2)
    gateway = stage.service(GATEWAY)
    gateway.suspend()
    try:
        time.sleep(HALTED)
    finally:
        gateway.resume()
    began = time.monotonic()
    job.wait_for_round(3)
    outcome = Outcome(time.monotonic() - began, "said, the run goes on by itself")
    outcome.expect("the gate does not answer" in job.words, "nothing is said of it")
    return same(stage, outcome, job, name, *words)


def everything_killed(stage: Stage, name: str) -> Outcome:
    """Everything -9 at once, then up, start and run again."""
    words = (
        "rounds=4",
        "node-wait=90",
        SLOW,
    )  # for a minute flwr calls those online that are not, and nobody else
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
