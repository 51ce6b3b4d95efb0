"""Sites leave, get another key and another name, with real SuperLink, gateway and sites."""

import gc
import re
import shutil
import time
from datetime import datetime
from pathlib import Path

import pytest

from deploy.local_federation import ROOT, LocalFederation, fedskew, fedskew_site
from fedskew.federation.folder import FederationFolder

WORDS = ["model=mlp-bn", "learning-rate=0.1", "method=fedavg", "node-wait=20"]
REVOKED = 60.0
"""Seconds in which a removed key has to be refused."""


def first_line(log: Path, pattern: str, seconds: float) -> str:
    """Return the first line of a log that has a pattern. Fails where there is none in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for line in log.read_text().splitlines():
            if re.search(pattern, line):
                return line
        time.sleep(0.2)
    return pytest.fail(f"no {pattern} in {seconds:g} s")


def distribute(federation: LocalFederation, *names: str) -> None:
    """Give sites the new federation.toml, which they approve; they have to be stopped."""
    for name in names:
        place = federation.places[name]
        shutil.copy(federation.folder / "federation.toml", place)
        file = place / "federation.toml"
        fedskew_site("approve", file, ROOT, "--site", place / "site.toml", "--yes")


@pytest.mark.slow
# The coordinator's commands run in this process, and leave their connections to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_sites_leave_and_get_other_keys_and_names(tmp_path: Path) -> None:
    federation = LocalFederation(tmp_path)
    federation.prepare("digits", 3)
    first, second, leaving = federation.places
    log = federation.folder / "superlink/gate.log"
    try:
        federation.up()
        federation.start()
        federation.wait_for_sites()
        job = federation.begin([*WORDS, "rounds=6"])
        job.wait_for_round(2)

        # A site leaves while a run goes on: its key is refused, and the run goes on with the two others.
        time_removed = datetime.now()
        fedskew("federation", "remove", federation.folder, leaving)
        line = first_line(log, r" unknown .*: 403", REVOKED)
        refused = datetime.strptime(line.split(",")[0], "%Y-%m-%d %H:%M:%S")
        assert (refused - time_removed).total_seconds() < REVOKED
        assert job.rounds() < 6
        assert job.finish()["rounds"] == 6
        sites = federation.status()
        assert sites == {first: "online", second: "online"}
        federation.stop()

        # The two that are left approve the new text, and train on.
        distribute(federation, first, second)
        federation.start(first, second)
        federation.wait_for_sites(first, second)
        assert federation.run([*WORDS, "rounds=1"], "after-removal")["rounds"] == 1

        # One of them gets another key and another name.
        federation.stop()
        place = federation.places[second]
        mask_key = place / "new-mask.key"
        printed = fedskew_site(
            "key", place / "new.key", "--name", "renamed", "--mask-key", mask_key
        )
        (place / "new.txt").write_text(printed)
        fedskew("federation", "rekey", federation.folder, second, place / "new.txt")
        fedskew("federation", "rename", federation.folder, second, "renamed")
        site_file = place / "site.toml"
        text = 'mask-key = "new-mask.key"\n' + site_file.read_text().replace("node.key", "new.key")
        site_file.write_text(text.replace(f'name = "{second}"', 'name = "renamed"'))
        distribute(federation, first, second)
        federation.start(first, second)
        federation.wait_for_sites(first, "renamed")
        assert federation.run([*WORDS, "rounds=1"], "after-renaming")["rounds"] == 1
        assert FederationFolder(federation.folder).agreement.names == [first, "renamed"]
        assert len(list((federation.folder / "superseded").iterdir())) == 3
    finally:
        federation.stop()
        fedskew("federation", "down", federation.folder)
        gc.collect()  # closes connections while the test's filters of warnings are in force
