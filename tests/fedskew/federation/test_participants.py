"""The gateway hands out a run's messages to the sites of that run."""

from pathlib import Path

import pytest
from site_files import NAMES, agreed, write

from data import DataError
from fedskew.federation.folder import FederationFolder
from fedskew.federation.participants import FILE, Participants
from fedskew.federation.submission import submit


def test_all_sites_take_part_in_a_run_that_names_none(tmp_path: Path) -> None:
    participants = Participants(tmp_path)
    assert participants.allows("north", 7)
    participants.set(7, ["north", "east"])
    participants.set(8, ["south"])
    assert participants.allows("north", 7) and not participants.allows("south", 7)
    assert participants.allows("south", 8) and participants.allows("north", 9)


def test_a_damaged_file_hands_out_nothing(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    assert not Participants(tmp_path).allows("north", 7)


@pytest.mark.parametrize(("own", "sites"), [(False, []), (True, ["west"]), (True, [NAMES[0]])])
def test_a_submission_that_cannot_be_is_refused(
    tmp_path: Path, own: bool, sites: list[str]
) -> None:
    write(tmp_path / "federation.toml", agreed())
    if own:
        (tmp_path / "app.fab").write_bytes(b"")
    with pytest.raises(DataError):
        submit(FederationFolder(tmp_path), sites, "", print)
