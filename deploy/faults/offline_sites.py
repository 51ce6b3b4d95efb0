"""A site that is away for some rounds."""

import time

from faults.stage import LINK, NUMBER, VICTIM, Stage, until
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
