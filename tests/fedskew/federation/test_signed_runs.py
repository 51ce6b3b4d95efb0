"""Runs that the coordinator's key signs: who holds gateway and SuperLink starts no other one at the sites."""

import gc
import json
import shutil
import time
from pathlib import Path

import pytest

from deploy.local_federation import LocalFederation, fedskew, settings
from fedskew.engines import APP
from fedskew.federation.folder import FederationFolder
from fedskew.federation.superlink import Control
from server_app.settings import parse

WORDS = ["model=mlp-bn", "learning-rate=0.1", "method=fedavg", "node-wait=20"]


# ---- with real SuperLink, gateway and sites --------------------------------------------------------------------------


def submitted(federation: LocalFederation, signature: str, seed: int) -> tuple[int, str]:
    """Start a run at the SuperLink, past the command; return its number there, and how it ends."""
    folder = FederationFolder(federation.folder)
    stated = {
        "model": "mlp-bn",
        "method": "fedavg",
        "rounds": 1,
        "seed": seed,
        "dataset": f"sites:{folder.agreement_file.resolve()}",
        "results": str(federation.work / "past-the-command"),
    }
    config = {**parse(stated).run_config(), "run-signature": signature}
    control = Control(folder.coordinator.superlink_port, folder.authority[0])
    number = control.submit(APP, config)
    deadline = time.monotonic() + 120
    while not (status := control.status(number)).finished:
        assert time.monotonic() < deadline
        time.sleep(0.3)
    return number, status.details


def entries(place: Path) -> list[dict[str, object]]:
    """Return the entries of a site's audit log."""
    lines = (place / "state" / "audit.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.slow
@pytest.mark.timeout(900)
# The coordinator's commands run in this process, and leave their connections to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_sites_take_signed_runs_alone(tmp_path: Path) -> None:
    """The key lies on another machine: there `sign` reads a copy of the folder without the SuperLink's state."""
    federation = LocalFederation(tmp_path)
    federation.prepare("digits", 2)
    founding = tmp_path / "founding"
    shutil.copytree(federation.folder, founding)
    for name in ("ca.key", "coordinator.key"):
        (federation.folder / name).unlink()
    words = settings([*WORDS, "rounds=2"])
    try:
        federation.up()
        federation.start()
        federation.wait_for_sites()
        with pytest.raises(Exception, match=r"coordinator\.key: there is no such key"):
            federation.run([*WORDS, "rounds=2"])

        # Nobody has signed it, or somebody has signed another run.
        signature = fedskew("federation", "sign", founding, *words).strip()
        for number, given in enumerate(("", signature)):
            run, ended = submitted(federation, given, seed=number)
            assert "site site-0 refuses the run, as run-key has not signed it: not signed" in ended
            for place in federation.places.values():
                about = [entry for entry in entries(place) if entry.get("run") == run]
                assert {entry["event"] for entry in about} == {"run", "answered"}
                (left,) = next(entry["left"] for entry in about if entry["event"] == "answered")
                assert str(left["why"]).startswith("not signed: run-key ")
                assert "RunNotSigned: not signed:" in (place / "state" / "site.log").read_text()
                assert not (place / "state" / "runs").exists()

        # Whether sites are ready may be asked without a signature.
        assert fedskew("federation", "status", federation.folder).count(": ready") == 2

        # The signed run passes, and is the rehearsal's, which needs no signature.
        run_words = federation.run_words([*WORDS, "rounds=2"])
        trained = json.loads(fedskew(*run_words, "--signature", signature))
        assert trained["hash"] == federation.rehearse([*WORDS, "rounds=2"])["hash"]
        for place in federation.places.values():
            assert entries(place)[-1]["event"] == "answered"
    finally:
        federation.down()
        gc.collect()  # closes connections while the test's filters of warnings are in force
