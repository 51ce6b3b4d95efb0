"""Sites that are away: halted, behind a line that is cut, too many at once."""

import time
from collections.abc import Callable

from faults.stage import LINK, NUMBER, TRAIN, VICTIM, Stage, until
from faults.trial_result import SLOW, TrialResult, same

LONGER = 5.0
"""Seconds by which a round may be longer without a site."""


def away(stage: Stage, name: str) -> TrialResult:
    """SuperNode away for three rounds, then back; scaffold, so that there are controls beside batch norm."""
    words = "rounds=12", "method=scaffold+fedbn", SLOW
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
    result = TrialResult(time.monotonic() - began, "asked again")
    job.finish()
    records = job.records()
    seconds = {record["round"]: record["seconds"]["round"] for record in records[1:]}
    without = [record["round"] for record in records[1:] if NUMBER not in record["clients"]]
    usual = max(seconds[record] for record in seconds if record not in without)
    longest = max(seconds[record] for record in without[1:])  # the first waits node-wait, once
    result.expect(
        longest <= usual + LONGER,
        f"a round without it took {longest:.0f} s, one with it {usual:.0f} s",
    )
    result.seen += (
        f"; known to be away, a round takes {longest:.1f} s (at most {usual:.1f} s with it)"
    )
    return same(stage, result, job, name, *words, everybody=False)


def line_cut(seconds: float) -> Callable[[Stage, str], TrialResult]:
    """Return the row in which the victim's line is down for a while."""

    def row(stage: Stage, name: str) -> TrialResult:
        words = (
            "rounds=4",
            "node-wait=90",
            SLOW,
        )  # flwr calls a node lost after 60 s; then it is waited for
        job = stage.begin(name, *words)
        job.wait_for_round(2)
        with stage.line.cut():
            time.sleep(seconds)
        began, number = time.monotonic(), len(job.records())
        job.wait_for_round(min(number + 1, 4))
        result = TrialResult(time.monotonic() - began, "nothing is lost")
        return same(stage, result, job, name, *words)

    return row


def below_minimum(stage: Stage, name: str) -> TrialResult:
    """Three sites of four gone, where two make a round."""
    words = "rounds=6", SLOW
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
    result = TrialResult(time.monotonic() - began, f"stops ({code}): {sentence[:200]!r}")
    result.expect(code != 0, "the run did not stop")
    result.expect(all(site in sentence for site in gone), f"does not name {gone}")
    return same(stage, result, again, name, *words, everybody=False)
