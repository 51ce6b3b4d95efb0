"""Disks that are full, and a site's memory that is lost or damaged."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from faults.stage import LINK, NUMBER, TRAIN, VICTIM, Stage, shell, until
from faults.trial_result import SLOW, TrialResult, same
from fedskew.engines.processes import alive
from fedskew.federation.services import SERVER_APP


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
        until(lambda: unmounted(place), f"{place} is busy", 60.0)
        shutil.rmtree(place)
        after.rename(place)
        shutil.rmtree(kept)


def unmounted(place: Path) -> bool | None:
    """Return whether a disk is away; what is being ended may hold it for a moment."""
    with suppress(RuntimeError):
        shell("umount", str(place))
        return True
    return None


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


def site_disk_full(stage: Stage, name: str) -> TrialResult:
    """The disk of a site's state full."""
    words = "rounds=10", SLOW
    stage.halt(TRAIN, LINK)
    with small_disk(stage.place / "state", "16m"):
        stage.revive()
        job = stage.begin(name, *words)
        job.wait_for_round(2)
        filler, number = fill(stage.place / "state"), len(job.records())
        job.wait_for_round(number + 3)
        failures = [
            record["failures"].get(str(NUMBER), "") for record in job.records()[number + 1 :]
        ]
        filler.unlink()
        began = time.monotonic()
        until(
            lambda: job.check() or NUMBER in job.records()[-1]["clients"] or None,
            f"{VICTIM} is not back",
        )
        result = TrialResult(time.monotonic() - began, f"left out: {failures[-1]!r}")
        result.expect(all(failures), f"{VICTIM} is not left out: {failures}")
        job.finish()
        stage.halt(TRAIN, LINK)
    return same(
        stage,
        result,
        job,
        name,
        *words,
        everybody=False,
    )  # maps what is in the state: not on that disk


def server_disk_full(stage: Stage, name: str) -> TrialResult:
    """The disk of the server's results full."""
    words = "rounds=4", SLOW
    place = stage.federation.work / name
    with small_disk(place, "4m"):
        job = stage.begin(name, *words)
        job.wait_for_round(2)
        filler = fill(place)
        code = job.process.wait(300)
        sentence = (
            job.words.strip().splitlines()[-1].replace(str(place), "...")
            if job.words.strip()
            else ""
        )
        filler.unlink()
        began = time.monotonic()
        again = stage.begin(name, *words)
        again.wait_for_round(3)
        result = TrialResult(time.monotonic() - began, f"stops ({code}): {sentence[:160]!r}")
        result.expect(code != 0, "the run did not stop")
        return same(stage, result, again, name, *words)


def memory_damaged(damage: Callable[[Path], None]) -> Callable[[Stage, str], TrialResult]:
    """Return the row in which the victim's memory file is damaged between two starts of a run."""

    def row(stage: Stage, name: str) -> TrialResult:
        words = "rounds=4", SLOW
        job = stage.begin(name, *words)
        job.wait_for_round(2)
        job.process.kill()
        job.process.wait()
        process = stage.service(SERVER_APP)
        process.kill()
        until(lambda: not alive(process) or None, "the ServerApp is not gone")
        stage.wait_until_idle()
        number = len(job.records())
        file = next(
            (stage.place / "state" / "runs" / job.folder.name).rglob(
                f"round-{number:06d}.safetensors"
            )
        )
        damage(file)
        again = stage.begin(name, *words)
        began = time.monotonic()
        again.wait_for_round(number + 1)
        result = TrialResult(time.monotonic() - began, "")
        again.finish()
        failures = [record["failures"].get(str(NUMBER), "") for record in again.records()[number:]]
        result.seen = f"left out: {failures[0]!r}"
        result.expect(
            all("memory" in failure for failure in failures),
            f"{VICTIM} is not left out: {failures}",
        )
        return same(stage, result, again, name, *words, everybody=False)

    return row


def flip(file: Path) -> None:
    """Change one bit of a file."""
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
