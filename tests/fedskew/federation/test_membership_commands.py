"""A site leaves a federation that is in use, or gets another key or name, or the app is another one."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data import DataError
from data.agreement import as_flower_has_it, read_agreement
from fedskew.engines.flower import LaunchFailed
from fedskew.federation import membership, services
from fedskew.federation.flower_internals import RegisterNodeRequest, UnregisterNodeRequest
from fedskew.federation.folder import DATABASE, FederationFolder
from fedskew.federation.membership import SUPERSEDED, rekey, remove, rename, update
from fedskew.federation.superlink import Control
from tests.command_line import FedSkew, fedskew
from tests.site_files import agreed, public_key, with_mask_keys, write

__all__ = ["fedskew"]
FOUR = with_mask_keys(("north", "east", "south", "west"))


@pytest.fixture
def folder(tmp_path: Path) -> FederationFolder:
    """A federation of four sites, whose file has comments."""
    file = write(tmp_path / "federation.toml", agreed(site=FOUR))
    text = file.read_text()
    parts = text.split("[[site]]")
    assert len(parts) == 5
    file.write_text("# a study\n" + "# the next site\n[[site]]  # a site".join(parts))
    return FederationFolder(tmp_path)


def text_of(folder: FederationFolder) -> str:
    return folder.agreement_file.read_text()


def test_a_site_leaves_and_the_former_text_is_kept(folder: FederationFolder) -> None:
    before = text_of(folder)
    change = remove(folder, "east")
    after = read_agreement(folder.agreement_file)
    assert after.names == ["north", "south", "west"]
    assert [site.key for site in after.sites] == [FOUR[n]["key"] for n in (0, 2, 3)]
    assert text_of(folder).startswith("# a study\n")
    assert (folder.path / change.kept).read_text() == before
    assert '-name = "east"' in change.difference and '-name = "south"' not in change.difference
    assert change.warning.startswith("east leaves: masked sums of both federations")
    assert folder.agreement.names == after.names  # what was read before is read again


@pytest.mark.parametrize("name", ["north", "west"])
def test_the_first_and_the_last_site_leave(folder: FederationFolder, name: str) -> None:
    remove(folder, name)
    assert read_agreement(folder.agreement_file).names == [
        s["name"] for s in FOUR if s["name"] != name
    ]


def test_a_site_gets_another_key(folder: FederationFolder) -> None:
    key = public_key("key-1")
    change = rekey(folder, "south", f"{key} a comment")
    sites = read_agreement(folder.agreement_file).sites
    assert [site.key for site in sites] == [FOUR[0]["key"], FOUR[1]["key"], key, FOUR[3]["key"]]
    assert [site.mask_key for site in sites] == [site["mask-key"] for site in FOUR]
    changed = [line for line in change.difference.splitlines()[2:] if line[0] in "+-"]
    assert [line[:7] for line in changed] == ["-key = ", "+key = "]


def test_a_site_gets_another_mask_key_with_its_key(folder: FederationFolder) -> None:
    (other,) = with_mask_keys(("other",))
    rekey(folder, "south", other["key"], other["mask-key"])
    assert read_agreement(folder.agreement_file).sites[2].mask_key == other["mask-key"]


def test_a_mask_key_comes_where_there_was_none(tmp_path: Path) -> None:
    plain = [{key: value for key, value in site.items() if key != "mask-key"} for site in FOUR]
    write(tmp_path / "federation.toml", agreed(site=plain, sums="plain"))
    folder = FederationFolder(tmp_path)
    for number, site in enumerate(FOUR):
        rekey(folder, site["name"], public_key(f"new-{number}"), site["mask-key"])
        assert read_agreement(folder.agreement_file).sites[number].mask_key == site["mask-key"]


def test_a_site_gets_another_name_and_keeps_key_and_number(folder: FederationFolder) -> None:
    change = rename(folder, "west", "far-west")
    after = read_agreement(folder.agreement_file)
    assert after.names == ["north", "east", "south", "far-west"]
    assert after.sites[3].key == FOUR[3]["key"] and change.warning == ""


def test_a_key_that_was_replaced_does_not_come_back(folder: FederationFolder) -> None:
    former = FOUR[2]["key"]
    rekey(folder, "south", public_key("key-3"))
    before = text_of(folder)
    with pytest.raises(DataError, match="was a site's before and is not valid any more"):
        rekey(folder, "south", former)
    with pytest.raises(DataError, match="was a site's before"):
        rekey(folder, "north", f"{former} with a comment")
    assert text_of(folder) == before
    rekey(folder, "south", public_key("key-4"))  # the control


def test_add_takes_no_key_of_a_site_that_was_removed(
    folder: FederationFolder, fedskew: FedSkew
) -> None:
    remove(folder, "west")
    status, _, errors = fedskew("federation", "add", folder.path, "west", FOUR[3]["key"])
    assert status != 0 and "was a site's before" in errors
    words = ("federation", "add", folder.path, "west", public_key("key-5"))
    status, _, errors = fedskew(*words, "--mask-key", FOUR[3]["mask-key"])
    assert status == 0, errors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: remove(folder, "nowhere"), "is no site of federation"),
        (lambda folder: rename(folder, "north", "east"), "is another site's"),
        (lambda folder: rename(folder, "north", "no name"), "must be 1 to 40 letters"),
        (lambda folder: rekey(folder, "north", FOUR[1]["key"]), "is another site's"),
        (lambda folder: rekey(folder, "north", "ecdsa no key"), "must be a node's public key"),
    ],
)
def test_what_cannot_be_agreed_changes_nothing(
    folder: FederationFolder, change: Any, message: str
) -> None:
    before = text_of(folder)
    with pytest.raises(DataError, match=message):
        change(folder)
    assert text_of(folder) == before
    assert [file.name for file in folder.path.iterdir()] == ["federation.toml"]


def test_a_federation_keeps_two_sites(tmp_path: Path) -> None:
    write(tmp_path / "federation.toml", agreed(site=FOUR[:2]))
    with pytest.raises(DataError, match="at least 2"):
        remove(FederationFolder(tmp_path), "north")


def test_a_file_of_another_form_is_changed_by_hand(tmp_path: Path) -> None:
    """The sites stand in one list here, so no entry [[site]] is found."""
    entries = agreed(site=FOUR)
    lines = write(tmp_path / "federation.toml", entries).read_text().split("[[site]]")[0]
    sites = ", ".join(
        "{" + ", ".join(f'{key} = "{value}"' for key, value in site.items()) + "}" for site in FOUR
    )
    (tmp_path / "federation.toml").write_text(f"{lines}\nsite = [{sites}]\n")
    folder = FederationFolder(tmp_path)
    assert len(folder.agreement.sites) == 4
    for change in (lambda: remove(folder, "east"), lambda: rename(folder, "east", "far-east")):
        with pytest.raises(DataError, match="change it by hand"):
            change()
    assert not (tmp_path / SUPERSEDED).exists()


def test_the_installed_app_is_agreed_to(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "app_files", lambda path: {"client_app/x.py": b"new"})
    before = folder.agreement
    change = update(folder)
    after = read_agreement(folder.agreement_file)
    assert after.app != before.app and after.sites == before.sites
    assert f'-app = "{before.app}"' in change.difference
    again = update(folder)
    assert again.difference == "" and len(list((folder.path / SUPERSEDED).iterdir())) == 1


class Node(SimpleNamespace):
    """A node as the SuperLink lists it."""

    node_id: int
    public_key: bytes
    status: str


def test_the_superlink_forgets_who_is_no_site_any_more(folder: FederationFolder) -> None:
    stranger = public_key("key-6")
    keys = [FOUR[0]["key"], FOUR[1]["key"], stranger, FOUR[2]["key"]]
    nodes = [
        Node(node_id=n, public_key=as_flower_has_it(key), status="online")
        for n, key in enumerate(keys)
    ]
    nodes[3].status = "unregistered"
    asked: list[Any] = []

    class Answering(Control):
        def __init__(self) -> None: ...

        def ask(self, call: str, request: Any) -> Any:
            asked.append(request)
            return SimpleNamespace(nodes_info=nodes)

    Answering().register(folder.agreement)
    removed = [one.node_id for one in asked if isinstance(one, UnregisterNodeRequest)]
    added = [one.name for one in asked if isinstance(one, RegisterNodeRequest)]
    assert removed == [2] and added == ["south", "west"]


def test_a_command_says_what_it_changes_and_what_is_to_do(
    folder: FederationFolder, fedskew: FedSkew, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, output, errors = fedskew("federation", "remove", folder.path, "east")
    assert status == 0, errors
    assert '-name = "east"' in output and "Warning: east leaves: masked sums" in output
    assert "fedskew-site approve" in output and "SuperLink" not in output  # it has never run

    folder.state.mkdir()
    (folder.state / DATABASE).touch()
    taken: list[FederationFolder] = []
    monkeypatch.setattr(services, "register", taken.append)
    status, output, _ = fedskew("federation", "rename", folder.path, "north", "far-north")
    assert status == 0 and "Gateway and SuperLink now use the new site list" in output
    assert [one.agreement.names for one in taken] == [["far-north", "south", "west"]]
    words = ("federation", "add", folder.path, "east", public_key("new"))
    status, output, _ = fedskew(*words, "--mask-key", FOUR[1]["mask-key"])
    assert status == 0 and "Gateway and SuperLink now use the new site list" in output
    assert taken[-1].agreement.names == ["far-north", "south", "west", "east"]

    def away(folder: FederationFolder) -> None:
        raise LaunchFailed("superlink is not up")

    monkeypatch.setattr(services, "register", away)
    status, output, _ = fedskew("federation", "rekey", folder.path, "south", public_key("key-7"))
    assert status == 0 and "it will load the new site list when it starts" in output
    status, _, errors = fedskew("federation", "remove", folder.path, "nowhere")
    assert status != 0 and "is no site of federation" in errors
