"""A site approves one federation.toml and one app by their hashes: what is shown, kept, refused, and answered for."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from client_app.local_site import DEFAULT_PERMISSIONS, PERMISSIONS
from data import DataError
from site_agent.app_files import build
from site_agent.approval import approve, approved_files, changes_since, summary
from tests.site_agent.conftest import FedSkewSite, Install
from tests.site_agent.hospital import CODE, Hospital, write_app
from tests.site_files import site_entries, with_mask_keys, write


def never(text: str) -> bool:
    pytest.fail("it asks")


def line_of(shown: str, word: str) -> str:
    """Return the one line of what is shown that begins with a word."""
    (line,) = [line for line in shown.splitlines() if line.startswith(f"{word} ")]
    return line


# ---- what is kept ----------------------------------------------------------------------------------------------------


def test_what_is_approved_is_kept_and_logged(hospital: Hospital, fedskew_site: FedSkewSite) -> None:
    words = ("approve", hospital.federation, hospital.app, "--site", hospital.site_file)
    status, output, _ = fedskew_site(*words)  # nobody is at a terminal
    assert status == 1 and output.endswith("not approved\n")
    with pytest.raises(DataError):
        approved_files(hospital.site)

    status, output, _ = fedskew_site(*words, "--yes")
    agreement = hospital.site.agreement
    assert status == 0 and agreement.sha256 in output and agreement.app in output
    assert approved_files(hospital.site)
    assert (hospital.approved / "federation.toml").read_bytes() == hospital.federation.read_bytes()
    assert hospital.site.state.stat().st_mode & 0o077 == 0
    (entry,) = hospital.entries()
    assert (entry["event"], entry["app"]) == ("approved", agreement.app)
    assert entry["federation"] == agreement.sha256 and entry["by"]


def test_a_fab_is_approved_as_its_folder_is(hospital: Hospital, tmp_path: Path) -> None:
    fab = tmp_path / "small.fab"
    fab.write_bytes(build(hospital.app))
    assert approve(hospital.site, hospital.federation, fab, lambda text: True)
    assert approved_files(hospital.site)


@pytest.mark.parametrize("change", ["text", "app", "changed", "added", "removed", "policy"])
def test_what_is_not_agreed_or_not_installed_is_refused_before_anybody_is_asked(
    hospital: Hospital, install: Install, tmp_path: Path, change: str
) -> None:
    federation = hospital.federation
    where = str(hospital.app)
    if change == "text":  # another one than site.toml names
        federation = tmp_path / "other.toml"
        federation.write_text(f"{hospital.federation.read_text()}# a comment\n")
        where = str(federation)
    elif change == "app":  # another one than federation.toml names
        (hospital.app / "README.md").write_text("It is not.")
    elif change == "policy":
        write(hospital.site_file, site_entries(policy={"models": ["resnet"]}))
        where = "policy"
    else:
        installed = tmp_path / "installed"
        shutil.copytree(hospital.app, installed)
        file = installed / "client_app" / "app.py"
        if change == "removed":
            file.unlink()
        else:
            (file if change == "changed" else file.with_name("more.py")).write_text("app = 2\n")
        install(installed)
    with pytest.raises(DataError) as refused:
        approve(hospital.site, federation, hospital.app, never)
    assert refused.value.where == where
    assert not hospital.approved.exists()


def test_files_that_do_not_run_at_a_site_may_differ_from_what_is_installed(
    hospital: Hospital, install: Install, tmp_path: Path
) -> None:
    """But for an agreed module, which may import the server's code: that is approved too."""
    installed = tmp_path / "installed"
    shutil.copytree(hospital.app, installed)
    (installed / "strategies").mkdir()
    (installed / "strategies" / "other.py").write_text("x = 1\n")
    install(installed)
    hospital.approve()

    module = hospital.folder / "agreed_file.py"
    module.write_text("x = 1\n")
    write(hospital.site_file, site_entries(module=module.name))
    code = hashlib.sha256(module.read_bytes()).hexdigest()
    hospital.receive(module={"name": "agreed_file", "sha256": code})
    with pytest.raises(DataError):
        hospital.approve()
    install(hospital.app)
    hospital.approve()
    assert hospital.entries()[-1]["module"] == code


def test_what_was_approved_once_is_looked_at_again(hospital: Hospital, install: Install) -> None:
    hospital.approve()
    source, fab = hospital.app / "data" / "a.py", hospital.approved / "app.fab"
    kept, text = fab.read_bytes(), hospital.federation.read_text()
    for damage, repair in (
        (lambda: source.write_text("changed = 1"), lambda: source.write_text(CODE["data/a.py"])),
        (lambda: fab.write_bytes(kept[:-40]), lambda: fab.write_bytes(kept)),
        (lambda: hospital.receive(min_sites=3), lambda: hospital.federation.write_text(text)),
    ):
        damage()
        with pytest.raises(DataError):
            approved_files(hospital.site)
        repair()
        assert approved_files(hospital.site)
    other = write_app(hospital.folder / "other", {**CODE, "README.md": "Another."})
    fab.write_bytes(build(other))
    with pytest.raises(DataError):
        approved_files(hospital.site)


# ---- what is shown ---------------------------------------------------------------------------------------------------


def test_who_approves_is_shown_what_may_leave_and_what_a_run_may_ask_for(
    hospital: Hospital,
) -> None:
    shown = summary(hospital.site, "f" * 64)
    for name in PERMISSIONS:
        word = "may leave" if name in DEFAULT_PERMISSIONS else "stays here"
        assert f"{word:<12}{name}" in shown.splitlines()
    assert line_of(shown, "federation").endswith("chest: north, east, south")
    assert line_of(shown, "app").endswith("f" * 64)
    assert line_of(shown, "sums").split()[1] == "masked:"
    assert "policy      models = any" in shown and "policy      approve-runs = false" in shown

    policy = {"allow": ["model"], "max-norm": 2.5, "min-class-samples": 6, "methods": []}
    write(hospital.site_file, site_entries(policy=policy))
    sites = with_mask_keys()
    hospital.receive(sums="plain", site=[{**sites[0], "samples": 300}, *sites[1:]])
    shown = summary(hospital.site, "app")
    assert line_of(shown, "may leave").split()[2:] == ["model"]
    assert "samples     north: 300\nsamples     east: any number\n" in shown
    assert line_of(shown, "sums").split()[1] == "plain:"
    for key, value in {**policy, "min-batch-size": 8}.items():
        assert f"policy      {key} = {json.dumps(value)}\n" in shown


def test_each_of_two_sites_learns_the_other_s_counts_and_is_told_so(hospital: Hospital) -> None:
    two = with_mask_keys(("north", "south"))
    hospital.receive(site=two, min_sites=2)
    site = hospital.site
    assert "south" in line_of(summary(site, "app"), "(!) counts")
    limits = site.policy.model_copy(update={"allow": ("model", "scores")})
    keeps = site.model_copy(update={"policy": limits})
    assert "(!) counts" not in summary(keeps, "app")


def test_what_leaves_without_masks_beside_masked_sums_is_shown(hospital: Hospital) -> None:
    """ccvr's answers, after the last round."""
    sites = with_mask_keys(("north", "east", "south"))
    hospital.receive(site=sites, sums="masked")
    assert "unmasked" not in summary(hospital.site, "app")
    write(hospital.site_file, site_entries(policy={"allow": [*PERMISSIONS]}))
    assert "ccvr" in line_of(summary(hospital.site, "app"), "unmasked")
    hospital.receive(site=sites, sums="plain")
    assert "unmasked" not in summary(hospital.site, "app")


def test_who_leaves_or_joins_masked_sums_is_shown(hospital: Hospital) -> None:
    """Both sums differ by that site alone."""
    four = with_mask_keys(("north", "east", "south", "west"))
    hospital.receive(site=four, sums="masked")
    assert "(!)" not in hospital.approve()
    hospital.receive(site=four[:3], sums="masked")
    assert "west" in line_of(hospital.approve(), "(!) sites")
    hospital.receive(site=four[:3], sums="masked", min_sites=3)
    assert "(!)" not in hospital.approve()


def test_a_second_approval_shows_what_is_other_than_before(hospital: Hospital) -> None:
    heading = "Other than what is approved here:"
    shown = [hospital.approve(), hospital.approve()]
    hospital.receive(name="heart")
    shown.append(hospital.approve())
    assert [heading in text for text in shown] == [False, False, True]

    content = hospital.federation.read_bytes()
    hidden = changes_since(hospital.site, content + "# \x9b2K\u2028name\n".encode(), {})
    assert r"+# \x9b2K\u2028name" in hidden, "a comment writes nothing over what is shown"
    code = {name: text.encode() for name, text in CODE.items()}
    files = {**code, "data/a.py": b"other", "data/new.py": b""}
    del files["README.md"]
    assert changes_since(hospital.site, content, files)[2:] == [
        "file changed, added or removed: 'README.md'",
        "file changed, added or removed: 'data/a.py'",
        "file changed, added or removed: 'data/new.py'",
        "file changed, added or removed: 'pyproject.toml'",
    ]
