"""Two federations that differ by one site tell that site's part by subtraction, and both parties are warned of it."""

from pathlib import Path
from typing import Any

import pytest

from data.agreement import Agreement, read_agreement, subtraction_warning
from fedskew.federation.folder import DATABASE, FederationFolder, add_site, begin
from site_agent.approval import summary
from site_agent.config import read_site
from tests.command_line import FedSkew, fedskew
from tests.site_files import agreed, site_folders, with_mask_keys, write

__all__ = ["fedskew"]
FOUR = with_mask_keys(("north", "east", "south", "west"))


def agreement_of(tmp_path: Path, sites: list[dict[str, Any]], **changes: Any) -> Agreement:
    return read_agreement(write(tmp_path / "federation.toml", agreed(site=sites, **changes)))


def test_the_site_that_two_federations_do_not_share_is_named(tmp_path: Path) -> None:
    four, three = (agreement_of(tmp_path, sites) for sites in (FOUR, FOUR[:3]))
    tells = "west alone, so whoever has both learns its class counts and feature statistics"
    assert subtraction_warning(three, four).startswith("west joins: masked sums of both")
    assert subtraction_warning(four, three).startswith("west leaves: masked sums of both")
    for warning in (subtraction_warning(three, four), subtraction_warning(four, three)):
        assert tells in warning
    others = agreement_of(tmp_path, FOUR[1:])
    assert "north joins, west leaves" not in subtraction_warning(three, others)
    assert "west joins, north leaves: " in subtraction_warning(three, others)
    assert "these sites alone" in subtraction_warning(three, others)


def test_there_is_nothing_to_warn_of_without_masks_or_with_the_same_sites(tmp_path: Path) -> None:
    four, three = (agreement_of(tmp_path, sites) for sites in (FOUR, FOUR[:3]))
    plain = agreement_of(tmp_path, FOUR, sums="plain")
    assert subtraction_warning(four, agreement_of(tmp_path, FOUR, mean=[0.25])) == ""
    assert subtraction_warning(three, plain) == "" and subtraction_warning(plain, three) == ""


@pytest.mark.parametrize("before", [FOUR[:3], FOUR])
def test_approve_warns_where_the_sites_are_others_than_before(
    tmp_path: Path, before: list[dict[str, Any]]
) -> None:
    folder = site_folders(tmp_path / "sites", site=FOUR)
    site = read_site(folder / "north/site.toml")
    assert "(!) sites" not in summary(site, "app")  # nothing is approved yet
    write(site.state / "approved/federation.toml", agreed(site=before))
    text = summary(site, "app")
    assert ("(!) sites   west joins: masked sums of both federations" in text) is (before != FOUR)


def test_add_warns_once_the_federation_has_run(tmp_path: Path, fedskew: FedSkew) -> None:
    path = tmp_path / "study"
    begin(path, "study", ["a", "b"], "1x8x8", [0.5], [0.5], 2, "localhost:18443", "127.0.0.1")
    folder = FederationFolder(path)
    for entry in FOUR[:3]:
        add_site(folder, entry["name"], entry["key"], None, entry["mask-key"])
    text = folder.agreement_file.read_text()
    words = ("federation", "add", path, "west", FOUR[3]["key"], "--mask-key", FOUR[3]["mask-key"])
    status, output, _ = fedskew(*words)
    assert status == 0 and "Warning" not in output
    folder.agreement_file.write_text(text)
    (folder.state / DATABASE).touch()
    status, output, _ = fedskew(*words)
    assert status == 0 and "Warning: west joins: masked sums of both federations" in output
