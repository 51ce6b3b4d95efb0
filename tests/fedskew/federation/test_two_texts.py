"""A new release and a changed text while a run goes on, with real SuperLink, gateway and sites."""

import gc
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy.local_federation import ROOT, Job, LocalFederation, fedskew, fedskew_site
from fedskew.federation.folder import FederationFolder

WORDS = ["model=mlp-bn", "learning-rate=0.1", "method=fedavg", "node-wait=20"]
PACKAGES = ("client_app", "data", "fedskew", "server_app", "site_agent", "strategies")
FILES = ("pyproject.toml", "README.md", "LICENSE", "experiments.yaml", ".gitignore")


def next_release(folder: Path) -> Path:
    """Write a release beside the installed one, whose server differs, and return its folder."""
    folder.mkdir()
    for name in PACKAGES:
        no_bytecode = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=no_bytecode)
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    with (folder / "server_app/app.py").open("a") as file:
        file.write("\n# the next release\n")
    return folder


def of_release(folder: Path, *words: str | Path) -> str:
    """Call `fedskew WORDS` of another release in a process of its own, and return what it prints."""
    command = [sys.executable, "-m", "fedskew", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


def approve(federation: LocalFederation, name: str, app: Path, *words: str) -> str:
    """Let a site, which may be running, approve the coordinator's text, and return what it is shown."""
    place = federation.places[name]
    shutil.copy(federation.folder / "federation.toml", place)
    site = place / "site.toml"
    return fedskew_site("approve", place / "federation.toml", app, "--site", site, "--yes", *words)


def check_went_on(federation: LocalFederation, job: Job, former: str) -> None:
    """Check that a run lost no site, and that the first one has answered it under the former text."""
    first = next(iter(federation.places.values()))
    lines = (first / "state/audit.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    change = [entry["event"] for entry in entries].index("taken over")
    texts = {entry["federation"] for entry in entries[change:] if "kind" in entry}
    assert texts == {former}, "the site has answered the former text after the change"
    assert [record["clients"] for record in job.records()] == [[0, 1, 2]] * 8


def answers(federation: LocalFederation) -> dict[str, str]:
    """Return what each site answers when it is asked about the former text."""
    with pytest.raises(SystemExit) as ended:  # fewer than min-sites are ready
        fedskew("federation", "status", federation.folder, "--former", "--json")
    printed = str(ended.value).partition(": ")[2]
    return {name: site["about"] for name, site in json.loads(printed)["sites"].items()}


@pytest.mark.slow
# The coordinator's commands run in this process, and leave their connections to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_run_goes_on_while_another_release_is_agreed_to(tmp_path: Path) -> None:
    federation = LocalFederation(tmp_path)
    federation.prepare("digits", 3)
    first, second, third = federation.places
    copies = federation.copied_sites("former-sites")
    former = FederationFolder(federation.folder).agreement
    release = next_release(tmp_path / "release")
    draft = tmp_path / "draft.toml"
    draft.write_text("# the second text\n" + (federation.folder / "federation.toml").read_text())
    try:
        federation.up()
        federation.start()
        federation.wait_for_sites()
        job = federation.begin([*WORDS, "rounds=8"])
        job.wait_for_round(1)

        # The coordinator agrees to a release and a text, and one site approves them, while the run goes on.
        shown = of_release(release, "federation", "update", federation.folder, draft)
        assert "+# the second text" in shown and f'-app = "{former.app}"' in shown
        shown = approve(federation, first, release, "--keep-former", "1")
        assert f"former      {former.sha256[:16]}" in shown and "file changed: 'server_app" in shown
        assert job.rounds() < 8, "the approval must fall into the run"
        summary = job.finish()
        assert summary["hash"] == federation.rehearse([*WORDS, "rounds=8"], sites=copies)["hash"]
        check_went_on(federation, job, former.sha256)

        # The coordinator can still begin a run with the former text and its release, in a ServerApp of its own.
        command = federation.run_words([*WORDS, "rounds=1", "seed=1"], "former")
        assert json.loads(fedskew(*command, "--former"))["rounds"] == 1

        # The others approve the new text, and nobody has to start again for it.
        for name in (second, third):
            approve(federation, name, release)
        command = federation.run_words([*WORDS, "rounds=1"], "new")
        assert json.loads(of_release(release, *command))["rounds"] == 1

        # The window ends: the former text is refused, by the first site with the time of its end.
        approve(federation, first, release, "--keep-former", "0.0001")
        time.sleep(1.0)
        refusals = answers(federation)
        code = former.sha256[:16]
        ended = f"agreement: the former federation.toml {code} was approved at this site until "
        assert refusals[first].startswith(ended)
        unknown = f"agreement: federation.toml {code} is not approved at this site"
        assert refusals[second] == refusals[third] == unknown
    finally:
        federation.down()
        gc.collect()  # closes connections while the test's filters of warnings are in force
