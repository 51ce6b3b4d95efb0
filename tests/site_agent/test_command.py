"""`fedskew-site`: exit codes, what it prints, and what it writes and deletes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from client_app.local_site import hash_of
from data.agreement import mask_key_text
from site_agent.audit import Audit
from site_agent.config import read_site
from site_agent.keys import make_key, read_mask_key
from site_agent.run_approval import check_approved
from site_agent.service import only_one
from tests.site_agent.conftest import FedSkewSite
from tests.site_agent.hospital import Hospital
from tests.site_files import (
    arrays,
    site_entries,
    site_folders,
    with_mask_keys,
    write,
    write_mask_key,
)


@pytest.fixture
def site_file(tmp_path: Path) -> Path:
    """site.toml of a site that has approved nothing."""
    return site_folders(tmp_path / "sites") / "north/site.toml"


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["start", "--only", "both"], 2),
        (["log", "--verfy"], 2),
        (["nothing"], 2),
        ([], 2),
        (["start", "--help"], 0),
    ],
)
def test_a_wrong_word_shows_the_usage_and_ends_with_2(
    words: list[str], status: int, fedskew_site: FedSkewSite
) -> None:
    ended, output, errors = fedskew_site(*words)
    assert ended == status
    assert "Usage: fedskew-site" in (errors if status else output)


def test_bad_input_gets_one_sentence_and_status_2(
    site_file: Path, fedskew_site: FedSkewSite
) -> None:
    missing = site_file.with_name("none.toml")
    link = {"address": "127.0.0.1:1", "key": "site.toml", "ca": "site.toml"}
    write(site_file, site_entries(link=link))
    for words, said in (
        (["status", "--site", missing], "none.toml"),
        (["export", missing, site_file.parent / "out", "--site", site_file], "none.toml"),
        (["start", "--only", "link", "--site", missing], "--secret"),
        (["start", "--site", site_file], "nothing is approved"),
    ):
        status, _, errors = fedskew_site(*words)
        assert status == 2 and errors.startswith("fedskew-site: ") and errors.count("\n") == 1
        assert said in errors


def test_help_imports_nothing_that_takes_long() -> None:
    script = """
import sys
from site_agent.cli import main
sys.argv = ["fedskew-site", "start", "--help"]
try:
    main()
except SystemExit as ended:
    assert not ended.code
assert not {name.split(".")[0] for name in sys.modules} & {"numpy", "torch", "flwr", "rich", "cryptography", "data"}
"""
    subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)


def test_key_prints_the_lines_of_federation_toml_and_overwrites_none(
    tmp_path: Path, fedskew_site: FedSkewSite
) -> None:
    status, output, _ = fedskew_site("key", tmp_path / "node", "--name", "west", "--samples", 300)
    public = mask_key_text(read_mask_key(tmp_path / "mask.key").public_key())
    heading, name, key, *rest = output.splitlines()
    assert (status, heading, name) == (0, "[[site]]", 'name = "west"')
    assert key.startswith('key = "ecdsa-sha2-nistp384 ')
    assert rest == [f'mask-key = "{public}"', "samples = 300"]
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
    # Neither key is made where one of them would be written over.
    assert fedskew_site("key", tmp_path / "node")[0] == 2
    assert fedskew_site("key", tmp_path / "other")[0] == 2
    assert not (tmp_path / "other").exists()


def rows_of(output: str) -> dict[str, str]:
    """Return what `check` prints: by subject how a row begins, the last of each subject."""
    return {line[4:].split("  ")[0].strip(): line[:3].strip() for line in output.splitlines()}


def test_check_looks_at_everything_and_says_what_is_to_be_done(
    hospital: Hospital, fedskew_site: FedSkewSite
) -> None:
    check = ("check", "--site", hospital.site_file)
    assert fedskew_site(*check)[0] == 1, "nothing is approved"
    public = make_key(hospital.folder / "node.key")
    (hospital.folder / "ca.crt").touch()
    write_mask_key(hospital.folder / "mask.key", "north")
    sites = with_mask_keys()
    sites[0]["key"] = public
    hospital.receive(site=[{**site, "samples": 24} for site in sites])
    hospital.approve()
    alone = site_entries()
    link = {"address": "127.0.0.1:1", "key": "node.key", "ca": "ca.crt"}
    hospital.site.state.chmod(0o700)
    write(hospital.site_file, {**alone, "link": link})
    status, output, _ = fedskew_site(*check)
    assert status == 0 and {*rows_of(output).values()} == {"ok"}, output

    def finds(subject: str, remedy: str) -> None:
        status, output, _ = fedskew_site(*check)
        assert status == 1 and rows_of(output)[subject] == "NO" and remedy in output, output

    hospital.site.state.chmod(0o755)
    finds("state", "chmod 700")
    (hospital.folder / "node.key").chmod(0o644)
    finds("key", "chmod go=")
    write(hospital.folder / "site.toml", {**alone, "policy": {"methods": ["fedprox"]}})
    finds("policy", "must be some of")
    write_mask_key(hospital.folder / "mask.key", "mallory")
    finds("mask key", "federation.toml says")
    labels = {**arrays(0), "train_labels": np.full(24, 3)}
    np.savez(hospital.folder / "data.npz", **labels)  # type: ignore[arg-type]
    finds("data", "train_labels")


def test_a_run_is_deleted_with_the_copy_of_the_data(
    site_file: Path, fedskew_site: FedSkewSite
) -> None:
    place = read_site(site_file)
    for folder in (place.run_folder("a"), place.run_folder("b"), place.cache):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    assert fedskew_site("delete-run", "a", "--site", site_file)[0] == 0
    assert not place.run_folder("a").exists() and not place.cache.exists()
    last = Audit(place.state / "audit.jsonl").lines()[-1]
    assert b'"event": "forgotten", "run": "a"' in last
    for run_id in ("a", "../b"):
        assert fedskew_site("delete-run", run_id, "--site", site_file)[0] == 2
    assert place.run_folder("b").exists()


def test_a_run_that_waits_is_listed_shown_and_approved(
    site_file: Path, fedskew_site: FedSkewSite
) -> None:
    write(site_file, site_entries(policy={"approve-runs": True}))
    place, settings = read_site(site_file), '{"rounds": 20}'
    code = hash_of(settings)
    with pytest.raises(PermissionError):
        check_approved(place, settings)
    at_site = ("--site", site_file)
    assert fedskew_site("runs", *at_site)[:2] == (0, f"waits      {code}\n")
    shown = f'{{\n  "rounds": 20\n}}\nsha256 {code}\n'
    assert fedskew_site("approve-run", code, *at_site)[:2] == (1, f"{shown}not approved\n")
    assert fedskew_site("approve-run", code, *at_site, "--yes")[:2] == (0, f"{shown}approved\n")
    check_approved(place, settings)
    assert fedskew_site("runs", *at_site)[:2] == (0, f"approved   {code}\n")
    entry = f'"event": "run approved", "settings": "{code}"'
    assert entry.encode() in Audit(place.state / "audit.jsonl").lines()[-1]


def test_a_health_check_looks_at_the_lock_alone(site_file: Path, fedskew_site: FedSkewSite) -> None:
    at_work = ("status", "--at-work", "--site", site_file)
    assert fedskew_site(*at_work)[0] == 1  # nothing was ever started: there is no state
    state = read_site(site_file).state
    state.mkdir()
    with only_one(state):
        assert fedskew_site(*at_work)[0] == 0
    assert fedskew_site(*at_work)[0] == 1
