"""A site that sends ten times its update."""

import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from faults.stage import Stage, stated
from faults.trial_result import TrialResult


@contextmanager
def hostile(stage: Stage, name: str) -> Iterator[None]:
    """Within this context a site is one that sends ten times its update."""
    stage.halt(name)
    place = stage.federation.places[name]
    words = [
        sys.executable,
        str(Path(__file__).with_name("hostile_site.py")),
        "start",
        "--site",
        "site.toml",
    ]
    with (place / "start.log").open("ab") as log:
        stage.federation.processes[name] = subprocess.Popen(
            words,
            stdout=log,
            stderr=log,
            cwd=place,
        )
    stage.federation.wait_for_sites()
    try:
        yield
    finally:
        stage.halt(name)


def tenfold(stage: Stage, name: str) -> TrialResult:
    """A site sends ten times its update, and the median bounds it.

    It is the site with the longest way: ten times the step of a small site is no longer than what honest ones send.
    """
    words = ["rounds=3", "method=median"]
    whole = stated(name, *words)
    stage.rehearse(set(), f"{name}-honest", *whole)
    honest = stage.records(f"{name}-honest")[0]["updates"]
    liar = max(honest, key=lambda update: float(update["norm"]))["client"]
    with hostile(stage, stage.names[liar]):
        job = stage.begin(name, *words)
        job.finish()
    records = job.records()
    if any(liar not in record["clients"] for record in records):
        return TrialResult(0.0, "", [f"not taken: {[record['failures'] for record in records]}"])
    norms = [
        {update["client"]: update["norm"] for update in record["updates"]} for record in records
    ]
    ratios = [norm[liar] / statistics.median(norm.values()) for norm in norms]
    result = TrialResult(
        0.0, f"norm {min(ratios):.1f} to {max(ratios):.1f} times the median of the sites'"
    )
    result.expect(min(ratios) > 5, "its norm does not stand out")
    without = {(record["round"], liar) for record in records}
    fewer = {(record["round"], (liar + 1) % len(stage.names)) for record in records}
    stage.rehearse(without, f"{name}-without", *whole)
    stage.rehearse(without | fewer, f"{name}-fewer", *whole)
    far, near = (stage.distance(other, f"{name}-without") for other in (name, f"{name}-fewer"))
    result.seen += f"; {far / near:.2f} times as far as leaving one honest site out"
    result.expect(far <= 2 * near, f"distance {far:.3g}, leaving one honest site out {near:.3g}")
    result.problems += stage.leftovers(job)
    return result
