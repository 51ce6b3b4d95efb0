"""What is killed with -9: a site's processes, the coordinator's, all at once."""

import threading
import time
from collections.abc import Callable

from local_federation import Job

from faults.stage import LINK, NUMBER, TRAIN, VICTIM, Stage, tree, until
from faults.trial_result import SLOW, TrialResult, same
from fedskew.federation.services import GATEWAY, SERVER_APP, SUPEREXEC

HALTED = 120.0
"""Seconds for which the gateway is halted."""
BACK = 75.0
"""Seconds in which a SuperNode has to be back."""
KILLED_IN = (2, 4, 7)
"""The rounds in which a SuperNode is killed while it uploads."""
UPLOAD = "64kbit"
"""The rate at which an upload of 80 kB takes ten seconds."""
LONGEST_SILENCE = 60.0
"""Seconds without a word of a run."""
LONG = "local-epochs=150"
"""A training that takes about as long as a site's start, so that a site is back in the next round or the one after."""


class Silence:
    """Measures the longest time in which a run says nothing, in a thread of its own."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.longest = 0.0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.measure, daemon=True)
        self.thread.start()

    def measure(self) -> None:
        """Look at the run's words until `stop`."""
        since, before = time.monotonic(), 0
        while not self.over.wait(0.2):
            size = self.job.log.stat().st_size
            now = time.monotonic()
            if size != before:
                since, before = now, size
            self.longest = max(self.longest, now - since)

    def stop(self) -> float:
        """Return the longest silence in seconds."""
        self.over.set()
        self.thread.join()
        return self.longest


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


def supernode_idle(stage: Stage, name: str) -> TrialResult:
    """SuperNode -9 while idle."""
    return same(stage, supernode_killed(stage), stage.begin(name, "rounds=3"), name, "rounds=3")


def supernode_training(stage: Stage, name: str) -> TrialResult:
    """SuperNode -9 while training."""
    words = "rounds=4", SLOW
    job = stage.begin(name, *words)
    stage.wait_for_training(job, 2)
    return same(stage, supernode_killed(stage), job, name, *words, everybody=False)


def supernode_uploading(stage: Stage, name: str) -> TrialResult:
    """SuperNode -9 in the middle of its upload in three of ten rounds; after the third the site stays away."""
    words = "rounds=10", "node-wait=75", SLOW
    job = stage.begin(name, *words)
    silence = Silence(job)
    seconds = []
    for number in KILLED_IN:
        job.wait_for_round(number - 1)
        with stage.line.slow(UPLOAD):
            stage.wait_for_upload()
            if number == KILLED_IN[-1]:
                for process in tree(stage.federation.processes[LINK].pid):
                    process.kill()
            else:
                stage.of_victim("flower-supernode", LINK).kill()
        began = time.monotonic()
        job.wait_for_round(number)
        seconds.append(time.monotonic() - began)
    job.finish()
    longest = silence.stop()
    seen = f"the others' replies are kept; no silence longer than {longest:.1f} s"
    result = TrialResult(max(seconds), seen)
    result.expect(longest <= LONGEST_SILENCE, f"silent for {longest:.1f} s")
    named = f"waiting for site {VICTIM}"
    result.expect(named in job.words, f"nothing is said of {VICTIM}")
    away = [record["round"] for record in job.records() if NUMBER not in record["clients"]]
    result.expect(set(away) >= set(range(KILLED_IN[-1], 11)), f"only rounds {away} were without it")
    return same(stage, result, job, name, *words, everybody=False)


def link_uploading(stage: Stage, name: str) -> TrialResult:
    """All of a site's link -9 in the middle of its upload in three of ten rounds, each time started after the round."""
    words = "rounds=10", LONG
    job = stage.begin(name, *words)
    silence = Silence(job)
    killed_in: list[int] = []
    seconds = []
    for _ in KILLED_IN:

        def back() -> bool | None:
            job.check()
            records = job.records()
            if len(records) == 10:
                raise RuntimeError(f"the run ended after the kills in rounds {killed_in}")
            return True if records and NUMBER in records[-1]["clients"] else None

        until(back, f"{VICTIM} is not in a round again")
        with stage.line.slow(UPLOAD):
            stage.wait_for_upload()
            number = job.rounds() + 1
            for process in tree(stage.federation.processes[LINK].pid):
                process.kill()
        began = time.monotonic()
        killed_in.append(number)
        job.wait_for_round(number)
        seconds.append(time.monotonic() - began)
        stage.supervise()
    job.finish()
    longest = silence.stop()
    seen = f"killed in rounds {killed_in}; no silence longer than {longest:.1f} s"
    result = TrialResult(max(seconds), seen)
    result.expect(longest <= LONGEST_SILENCE, f"silent for {longest:.1f} s")
    result.expect(f"waiting for site {VICTIM}" in job.words, f"nothing is said of {VICTIM}")
    records = job.records()
    away = [record["round"] for record in records if NUMBER not in record["clients"]]
    result.expect(len(records) == 10, f"{len(records)} rounds of 10")
    result.expect(set(killed_in) <= set(away), f"only rounds {away} were without it")
    others = set(range(len(stage.names))) - {NUMBER}
    result.expect(
        all(others <= set(record["clients"]) for record in records), "another site was left out"
    )
    return same(stage, result, job, name, *words, everybody=False)


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
        words = "rounds=4", "node-wait=20", SLOW  # behind a new gateway sites are away for 3 s
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


def superexec_killed(stage: Stage, name: str) -> TrialResult:
    """The SuperLink's SuperExec -9 before a run, which then has nobody to begin it."""
    words = ("rounds=3",)
    stage.service(SUPEREXEC).kill()
    began = time.monotonic()
    job = stage.begin(name, *words)
    job.wait_for_round(1)
    result = TrialResult(time.monotonic() - began, "started again, the run begins by itself")
    result.expect(f"{SUPEREXEC} had ended" in job.words, "nothing is said of it")
    return same(stage, result, job, name, *words)


def gate_halted(stage: Stage, name: str) -> TrialResult:
    """The gateway halted in round 3 for two minutes, in which flwr takes every site for lost."""
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
    result = TrialResult(time.monotonic() - began, "said, the run goes on by itself")
    result.expect("the gateway does not answer" in job.words, "nothing is said of it")
    return same(stage, result, job, name, *words)


def everything_killed(stage: Stage, name: str) -> TrialResult:
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
    return same(stage, TrialResult(time.monotonic() - began, "goes on"), again, name, *words)
