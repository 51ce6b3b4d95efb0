"""Several runs of one federation, with real SuperLink, gateway and sites: queued, stopped, followed, and an outage."""

import gc
import json
import time
from pathlib import Path

import pytest

from deploy.local_federation import LocalFederation, fedskew
from fedskew.engines.processes import process_of
from fedskew.federation.folder import FederationFolder
from fedskew.federation.queue import RunQueue

WORDS = ["model=mlp-bn", "learning-rate=0.1", "method=fedavg", "node-wait=5"]


class Queue:
    """The commands of the queue, given to a federation."""

    def __init__(self, federation: LocalFederation) -> None:
        self.federation, self.folder = federation, federation.folder
        self.queue = RunQueue(FederationFolder(self.folder))

    def detach(self, *words: str, wait: str = "10") -> int:
        """Ask for a run, and return its number."""
        command = self.federation.run_words([*WORDS, *words])
        command.remove("--json")
        fedskew(*command, "--detach", "--wait", wait)
        return self.queue.numbers()[-1]

    def states(self) -> list[str]:
        """Return how each run stands."""
        return [
            row["state"] for row in json.loads(fedskew("federation", "runs", self.folder, "--json"))
        ]

    def wait_for(self, number: int, text: str, seconds: float = 900.0) -> None:
        """Return once a run has printed a text. Fails where it does not in time."""
        deadline = time.monotonic() + seconds
        while text not in (printed := self.queue.log(number).read_text()):
            if time.monotonic() > deadline:
                pytest.fail(f"no {text!r} in {seconds:g} s: {printed[-600:]}")
            time.sleep(0.2)

    def follow(self, number: int) -> str:
        """Return what a run has printed, once it has finished."""
        return fedskew("federation", "follow", self.folder, str(number))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_runs_take_turns_and_wait_for_sites(tmp_path: Path) -> None:
    federation = LocalFederation(tmp_path)
    federation.prepare("digits", 2)
    runs = Queue(federation)
    try:
        federation.up()
        federation.start()
        federation.wait_for_sites()
        long, dropped, short = (
            runs.detach("rounds=12"),
            runs.detach("rounds=2"),
            runs.detach("rounds=1"),
        )
        assert runs.states() == ["running", "waiting", "waiting"]
        fedskew("federation", "stop", federation.folder, str(dropped))
        assert runs.states() == ["running", "stopped", "waiting"]

        # The one that trains is stopped between two rounds, and the next has its turn.
        runs.wait_for(long, " 2/12 ")
        fedskew("federation", "stop", federation.folder, str(long))
        assert process_of(runs.queue.get(long).process) is None
        printed = runs.follow(short)
        assert f"run {short} waits for its turn, after {long}" in printed and " 1/1 " in printed
        assert runs.states() == ["stopped", "stopped", "finished"]

        # The same settings resume the stopped run, which ends as one that nobody has disturbed.
        again = runs.detach("rounds=12")
        printed = runs.follow(again)
        assert " 1/12 " not in printed and " 12/12 " in printed
        files = federation.work.glob("results/*/summary.json")
        summaries = [json.loads(file.read_text()) for file in files]
        hashes = {summary["rounds"]: summary["hash"] for summary in summaries}
        assert hashes[12] == federation.rehearse([*WORDS, "rounds=12"])["hash"]

        # A site goes away before the next run: that one waits, and trains when the site is back.
        second = list(federation.places)[1]
        federation.stop(second)
        waiting = runs.detach("rounds=3")
        runs.wait_for(waiting, f"{second} are away: waiting 10 minutes at most")
        federation.start(second)
        assert "enough sites are online: submitting the run again" in runs.follow(waiting)

        # Without patience it fails, and the queue says why.
        federation.stop(second)
        impatient = runs.detach("rounds=4", wait="0")
        with pytest.raises(SystemExit):
            runs.follow(impatient)
        assert runs.states()[-1] == "failed"
    finally:
        federation.down()
        gc.collect()  # closes connections while the test's filters of warnings are in force
