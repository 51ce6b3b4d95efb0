"""What is killed with -9: a site's processes, the coordinator's, all at once."""

import time
from collections.abc import Callable

from faults.stage import LINK, TRAIN, VICTIM, Stage, until
from faults.trial_result import SLOW, TrialResult, same
from fedskew.federation.service import SERVER_APP

BACK = 75.0
"""Seconds in which a SuperNode has to be back."""


def supernode_killed(stage: Stage) -> TrialResult:
    """SuperNode -9; it has to be taken back by itself."""
    before = stage.supernode_says("SuperNode ID")
    stage.of_victim("flower-supernode", LINK).kill()
    began = time.monotonic()
    until(
        lambda: stage.supernode_says("SuperNode ID") > before or None, "the SuperNode is not back"
    )
    result = TrialResult(time.monotonic() - began, "taken back by itself")
    result.expect(result.seconds <= BACK, f"back after {result.seconds:.0f} s")
    return result


def supernode_training(stage: Stage, name: str) -> TrialResult:
    """SuperNode -9 while training."""
    words = "rounds=4", SLOW
    job = stage.begin(name, *words)
    stage.wait_for_training(job, 2)
    return same(stage, supernode_killed(stage), job, name, *words, everybody=False)


def executor_training(stage: Stage, name: str) -> TrialResult:
    """Executor -9 while training, started again."""
    words = "rounds=4", SLOW
    job = stage.begin(name, *words)
    stage.wait_for_training(job, 2)
    stage.federation.processes[TRAIN].kill()
    stage.federation.processes[TRAIN].wait()
    began = time.monotonic()
    stage.half("train")
    job.wait_for_round(2)
    return same(stage, TrialResult(time.monotonic() - began, "asked again"), job, name, *words)


def service_killed(program: str) -> Callable[[Stage, str], TrialResult]:
    """Return the row in which a process of the coordinator's is killed in round 3."""

    def row(stage: Stage, name: str) -> TrialResult:
        words = "rounds=4", "node-wait=20", SLOW  # behind a new SuperLink sites are away for 3 s
        before = stage.trainings()
        job = stage.begin(name, *words)
        job.wait_for_round(2)
        stage.service(program).kill()
        began = time.monotonic()
        if program != SERVER_APP:
            stage.federation.up()
        job.wait_for_round(3)
        result = TrialResult(time.monotonic() - began, "the run goes on by itself")
        job.finish()
        asked = stage.trainings() - before
        result.expect(asked <= 5, f"{VICTIM} trained {asked} times for 4 rounds")
        result.seen += f", {asked - 4} rounds repeated"
        return same(stage, result, job, name, *words)

    return row


def everything_killed(stage: Stage, name: str) -> TrialResult:
    """Everything -9 at once, then up, start and run again."""
    # For a minute flwr calls those online that are not, and nobody else.
    words = "rounds=4", "node-wait=90", SLOW
    job = stage.begin(name, *words)
    job.wait_for_round(2)
    job.process.kill()
    stage.kill_all()
    job.process.wait()
    began = time.monotonic()
    stage.revive()
    again = stage.begin(name, *words)
    again.wait_for_round(3)
    return same(stage, TrialResult(time.monotonic() - began, "goes on"), again, name, *words)
