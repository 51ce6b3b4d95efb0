"""Between three sites with real SuperLink, gateway and TLS: the rehearsal's bits, whatever is asked, lost or killed."""

import json
import re
import shutil
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from command_line import FedSkew
from running_federation import BACKBONE, MODULE, RUNNING_FEDERATION, TRAINED, WEIGHTS, rehearsed

from client_app.models.backbone import sha256_of
from deploy.local_federation import ROOT, LocalFederation, fedskew_site
from deploy.local_federation import fedskew as coordinator
from fedskew.engines.processes import running

pytestmark = RUNNING_FEDERATION


def test_a_run_has_the_rehearsals_hash_with_masked_and_with_plain_sums_and_is_exported_at_a_site(
    federation: LocalFederation, fedskew: FedSkew
) -> None:
    words = [*TRAINED, "method=fedshift+fedbn", "rounds=2"]
    trained = federation.run(words, "trained")
    for sums in ("masked", "plain"):
        assert trained["hash"] == rehearsed(federation, words, f"trained-{sums}", sums), sums
    for place in federation.places.values():
        events = [json.loads(line)["event"] for line in audit(place)]
        assert "summed" in events and "sum refused" not in events

    # Batch norm is each site's own: it joins its memory with what the coordinator exports.
    (settings,) = (federation.work / "trained").glob("*/settings.json")
    run = settings.parent
    shared, name = federation.work / "shared-model", "site-1"
    place = federation.places[name]
    assert fedskew("export", run, "--output", shared)[0] == 0
    fedskew_site("export", shared, place / "own-model", "--site", place / "site.toml")
    status, printed, errors = fedskew("predict", place / "own-model", place / "data.npz", "--json")
    assert status == 0, errors
    records = (run / "rounds.jsonl").read_text().splitlines()
    average = json.loads(records[-1])["models"]["average"]
    assert (
        json.loads(printed[printed.index("{") :])["metrics"]["accuracy"]
        == average["client-accuracy"]["values"][1]
    )


def audit(place: Path) -> list[str]:
    return (place / "state/audit.jsonl").read_text().splitlines()


@pytest.mark.parametrize("agreed", ["a backbone's weights", "own code"])
def test_what_is_agreed_by_hash_makes_the_rehearsals_model(
    federation: LocalFederation, agreed: str
) -> None:
    if agreed == "own code":
        words = [*TRAINED[1:], f"method={MODULE}:PAIR", f"model={MODULE}:small", "rounds=2"]
    else:
        weights = f"weights={federation.sites / WEIGHTS}"
        features = [f"model={BACKBONE}", weights, "freeze=all", "image-side=16"]
        words = ["method=fedncm", *features, "rounds=0"]
    results = agreed.replace(" ", "-")
    trained = federation.run(words, results)
    assert trained["hash"]["deployed" if "weights" in agreed else "shared"]
    assert trained["hash"] == rehearsed(federation, words, f"{results}-rehearsal")


def killed(folder: Path, program: str) -> int:
    """Kill the processes of a program, by their ids, and return how many there were."""
    processes = running(folder, program)
    for process in processes:
        process.kill()
    return len(processes)


def supernodes(place: Path) -> int:
    """Return how often a site's SuperNode has signed in."""
    return (place / "state/link/supernode.log").read_text().count("SuperNode ID")


def test_a_killed_run_goes_on_with_the_same_bits_after_a_site_was_killed_too(
    federation: LocalFederation,
) -> None:
    words = [*TRAINED, "method=fedshift", "rounds=5", "seed=2"]
    job = federation.begin(words, "killed")
    job.wait_for_round(2)
    place = federation.places["site-2"]
    before = supernodes(place)
    job.process.kill()
    job.process.wait()
    assert killed(federation.folder, "flwr-serverapp") == 1
    site = psutil.Process(federation.processes["site-2"].pid)
    for process in site.children(recursive=True):
        words_of = process.cmdline()
        if "--auth-supernode-private-key" in words_of and "keep-supernode" not in words_of:
            process.kill()
    deadline = time.monotonic() + 300
    while supernodes(place) == before:  # the site starts it again by itself
        assert time.monotonic() < deadline
        time.sleep(0.2)

    again = federation.begin(words, "killed")
    summary = again.finish()
    assert " 1/5 " not in again.words and " 5/5 " in again.words
    assert [record["clients"] for record in again.records()] == [[0, 1, 2]] * 5
    assert summary["hash"] == rehearsed(federation, words, "killed-rehearsal")


def test_a_run_under_a_text_that_no_site_has_approved_is_refused_by_each_with_its_hash(
    federation: LocalFederation,
) -> None:
    file = federation.folder / "federation.toml"
    text = file.read_text()
    approved = sha256_of(str(file))
    words = [*TRAINED, "method=fedavg", "rounds=1", "seed=3"]
    put_into_force(federation, f"# nobody has approved this\n{text}")
    other = sha256_of(str(file))
    try:
        with pytest.raises((SystemExit, Exception)) as refused:
            federation.run(words, "other-text")
    finally:
        put_into_force(federation, text)
    assert other[:16] in str(refused.value)
    for place in federation.places.values():
        log = (place / "state/site.log").read_text()
        assert f"federation.toml {other[:16]} is not approved at this site" in log
        assert sha256_of(str(place / "state/approved/federation.toml")) == approved
    assert federation.run(words, "approved-text")["failures"] == 0


def put_into_force(federation: LocalFederation, text: str) -> None:
    (federation.folder / "federation.toml").write_text(text)
    coordinator("federation", "agree", federation.folder, "--yes")


def write_tables(federation: LocalFederation) -> None:
    """Give each site a table of three columns of very different scales."""
    for number, place in enumerate(federation.places.values()):
        draws = np.random.default_rng(number)
        labels = np.arange(60) % 2
        columns = draws.normal(size=(60, 3)) * (5, 2e4, 1e-6) + (50, 8e4, 3e-6)
        columns[:, 0] += 5 * labels + number
        inputs = columns.astype(np.float32)
        np.savez(
            place / "table.npz",
            train_images=inputs[:45], train_labels=labels[:45],
            test_images=inputs[45:], test_labels=labels[45:],
        )  # fmt: skip


def agree(federation: LocalFederation, text: str, data: str) -> None:
    """Let all sites approve a text and read other data, and start them again."""
    federation.stop()
    put_into_force(federation, text)
    for place in federation.places.values():
        shutil.copy(federation.folder / "federation.toml", place)
        site = place / "site.toml"
        site.write_text(re.sub(r"(?m)^data = .*$", f'data = "npz:{data}"', site.read_text()))
        fedskew_site("approve", place / "federation.toml", ROOT, "--site", site, "--yes")
    federation.start()
    federation.wait_for_sites()


def test_sites_agree_to_another_text_whose_columns_are_standardized_by_a_masked_sum(
    federation: LocalFederation,
) -> None:
    text = (federation.folder / "federation.toml").read_text()
    table = re.sub(r"(?m)^(mean|std|backbone|weights|classes|input-shape) = .*\n", "", text)
    table = f'classes = ["healthy", "ill"]\ninput-shape = "3"\n{table}'
    words = [*TRAINED, "method=fedavg", "rounds=2"]
    write_tables(federation)
    place = federation.places["site-0"]
    site = place / "site.toml"
    whole = site.read_text()
    try:
        for folder in federation.places.values():
            file = folder / "site.toml"
            file.write_text(file.read_text().replace(f'weights = "{WEIGHTS}"\n', ""))
        agree(federation, table, "table.npz")
        trained = federation.run(words, "table")
        assert trained["hash"] == rehearsed(federation, words, "table-rehearsal")
        (run,) = (federation.work / "table").glob("*/settings.json")
        columns = json.loads(run.read_text())["standardization"]["columns"]
        inputs = [
            np.load(path / "table.npz")["train_images"] for path in federation.places.values()
        ]
        means = np.concatenate(inputs).astype(np.float64).mean(0)
        assert [column["mean"] for column in columns] == pytest.approx(means, rel=1e-6)
    finally:
        for name, folder in federation.places.items():
            (folder / "site.toml").write_text(whole.replace('"site-0"', f'"{name}"'))
        agree(federation, text, "data.npz")
