"""The coordinator's folder by its commands: what `new`, `add` and `update` write, and what they refuse unwritten."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click import BadParameter
from command_line import FedSkew

from data import DataError, InputError, SettingError
from data.agreement import as_flower_has_it, subtraction_warning
from data.toml_file import read_toml
from deploy.local_federation import fedskew as command
from fedskew.engines.processes import free_port
from fedskew.federation import service
from fedskew.federation.control import Control
from fedskew.federation.flower_internals import RegisterNodeRequest, UnregisterNodeRequest
from fedskew.federation.folder import FederationFolder
from server_app.settings import parse
from tests.site_files import agreed, public_key, with_mask_keys, write

FOUR = with_mask_keys(("north", "east", "south", "west"))
NEW = {
    "name": "two",
    "classes": "a,b",
    "input-shape": "1x8x8",
    "address": "gateway.example.org:8443",
}
ROOT = Path(__file__).parents[3]
APP = ROOT / "examples" / "flower-quickstart"
UNIT = ROOT / "deploy" / "fedskew-superlink.service"


def test_the_superlinks_unit_has_no_user_namespaces_of_its_own() -> None:
    """`up`, `down` and `run` read /proc/PID/environ of the service, which other user namespaces cannot."""
    keys = [line.partition("=")[0] for line in UNIT.read_text().splitlines()]
    assert "ProtectSystem" in keys and "PrivateUsers" not in keys


def new(folder: Path, **changes: str) -> FederationFolder:
    stated = NEW | {key.replace("_", "-"): value for key, value in changes.items()}
    options = [word for key, value in stated.items() if value for word in (f"--{key}", value)]
    command("federation", "new", folder, *options)
    return FederationFolder(folder)


def add(folder: FederationFolder, *sites: Any) -> None:
    for site in sites:
        mask_key = ("--mask-key", site["mask-key"])
        command("federation", "add", folder.path, site["name"], site["key"], *mask_key)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"name": "no name"}, "name"),
        ({"classes": "\uff12"}, "classes"),
        ({"std": "0"}, "std"),
        ({"address": "gateway:8O"}, "address"),
        ({"address": "https://gateway.example.org:8443"}, "address"),
        ({"address": "münchen.example:8443"}, "address"),
        ({"address": "::1:8443"}, "address"),
    ],
)
def test_no_folder_begins_with_what_nobody_can_read(
    tmp_path: Path, changes: dict[str, str], key: str
) -> None:
    with pytest.raises(DataError) as refused:
        new(tmp_path / "new", **changes)
    assert refused.value.key == key and not (tmp_path / "new").exists()


@pytest.mark.parametrize("key", ["authority-key", "coordinator-key"])
def test_a_key_goes_into_a_folder_that_is_there(tmp_path: Path, key: str) -> None:
    medium = tmp_path / "medium"
    with pytest.raises(SettingError) as refused:
        new(tmp_path / "study", **{key: str(medium / "key")})
    assert refused.value.key == f"--{key}" and not (tmp_path / "study").exists()
    medium.mkdir()
    new(tmp_path / "study", **{key: str(medium / "key")}, address="[::1]:8443")


def test_a_folder_begins_once_for_its_owner_and_its_file_takes_each_site_once(
    tmp_path: Path,
) -> None:
    folder = new(tmp_path / "study")
    add(folder, *FOUR[:2])
    before = folder.agreement_file.read_text()
    assert folder.agreement.names == ["north", "east"]
    assert folder.state.stat().st_mode & 0o777 == 0o700
    for secret in (folder.coordinator_key, folder.authority[1], folder.server[1]):
        assert secret.stat().st_mode & 0o777 == 0o600
    with pytest.raises(SettingError):
        new(tmp_path / "study")
    for name, key in (("north", FOUR[2]["key"]), ("south", FOUR[0]["key"])):
        with pytest.raises(DataError):
            add(folder, FOUR[2] | {"name": name, "key": key})
    assert folder.agreement_file.read_text() == before


def test_a_site_is_added_as_its_own_command_has_printed_it(
    tmp_path: Path, fedskew: FedSkew
) -> None:
    folder = new(tmp_path / "study")
    printed = tmp_path / "north.txt"
    keys = f'key = "{FOUR[0]["key"]}"\nmask-key = "{FOUR[0]["mask-key"]}"'
    printed.write_text(f'[[site]]\nname = "north"\n{keys}\nsamples = 400\n')
    outputs = []
    for words in (
        ("north", printed),
        ("east", FOUR[1]["key"], "--mask-key", FOUR[1]["mask-key"], "--samples", 300),
        ("south", FOUR[2]["key"]),
    ):
        status, output, errors = fedskew("federation", "add", folder.path, *words)
        assert status == 0, errors
        outputs.append(output)
    assert ["No sample limit" in output for output in outputs] == [False, False, True]
    assert ["has no mask-key" in output for output in outputs] == [False, False, True]
    none = fedskew("federation", "add", folder.path, "west", FOUR[3]["key"], "--samples", 0)
    assert none[0] == 2
    sites = read_toml(folder.agreement_file)[1]["site"]
    assert [site.get("samples") for site in sites] == [400, 300, None]


def test_a_sites_own_file_adds_that_site_and_nothing_else(tmp_path: Path) -> None:
    folder = new(tmp_path / "study")
    before = folder.agreement_file.read_text()
    other = rf"samples = 5\n[[site]]\nname = \"other\"\nkey = \"{FOUR[1]['key']}\"\n#"
    printed = tmp_path / "north.txt"
    printed.write_text(f'[[site]]\nkey = "{FOUR[0]["key"]}"\n"{other}" = 1\n')
    with pytest.raises(DataError, match="there is no such key"):
        command("federation", "add", folder.path, "north", printed)
    assert folder.agreement_file.read_text() == before


def test_a_round_needs_more_than_half_of_the_sites(tmp_path: Path) -> None:
    folder = new(tmp_path / "half")
    add(folder, *FOUR[:2])
    assert folder.agreement.min_sites == 2
    add(folder, *FOUR[2:])
    assert FederationFolder(folder.path).agreement.min_sites == 3


def test_up_says_the_address_as_sites_state_it(
    tmp_path: Path, fedskew: FedSkew, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = new(tmp_path / "study", address="[::1]:8443")
    add(folder, *FOUR[:2])
    monkeypatch.setattr(service, "up", lambda folder: None)
    assert fedskew("federation", "up", folder.path)[1].endswith("at [::1]:8443\n")


def test_columns_and_keys_of_more_letters_than_a_file_s_name_are_none(tmp_path: Path) -> None:
    names = [f"column-{number}" for number in range(40)]
    folder = new(tmp_path / "wide", columns=",".join(names), **{"input-shape": ""})
    assert read_toml(folder.agreement_file)[1]["input-columns"] == names
    with pytest.raises(DataError) as refused:
        command("federation", "add", folder.path, "north", "A" * 300)
    assert refused.value.key == "key"


def test_another_app_needs_no_classes_and_fedskews_does(tmp_path: Path) -> None:
    folder = new(tmp_path / "any", app=str(APP), classes="", input_shape="")
    for site in FOUR[:2]:
        command("federation", "add", folder.path, site["name"], site["key"])
    assert {*read_toml(folder.agreement_file)[1]} == {"name", "app", "site"}
    with pytest.raises(InputError):
        parse({"dataset": f"sites:{folder.agreement_file}"})
    with pytest.raises(BadParameter):
        new(tmp_path / "own", classes="")
    with pytest.raises(DataError) as half:
        new(tmp_path / "own", app=str(APP), input_shape="")
    assert half.value.key == "input-shape" and not (tmp_path / "own").exists()


@pytest.fixture
def folder(tmp_path: Path) -> FederationFolder:
    """A federation of three sites, whose file has comments."""
    file = write(tmp_path / "federation.toml", agreed(site=FOUR[:3]))
    file.write_text("# a study\n" + file.read_text())
    return FederationFolder(tmp_path)


def test_an_edited_text_is_put_into_force_and_the_former_one_is_kept(
    folder: FederationFolder, fedskew: FedSkew, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[list[str]] = []
    monkeypatch.setattr(service, "register", lambda one: registered.append(one.agreement.names))

    def agree(**changes: Any) -> tuple[int, str]:
        if changes:
            write(folder.agreement_file, agreed(**changes))
        status, output, _ = fedskew("federation", "agree", folder.path, "--yes")
        return status, output

    file, first = folder.agreement_file, folder.agreement
    assert agree()[0] == 0
    in_force = folder.agreed_file.read_text()
    second = FederationFolder(folder.path).agreement
    assert second.app != first.app and second.sites == first.sites, "the app is the installed one"
    assert in_force == file.read_text() and in_force.startswith("# a study\n")
    assert not (folder.path / "superseded").exists() and "Nothing to change" in agree()[1]

    # A site joins, and leaves: what masked sums of both texts tell is said, and its key does not come back.
    assert agree(site=FOUR)[0] == 0
    (kept,) = (folder.path / "superseded").iterdir()
    assert kept.read_text() == in_force
    status, output = agree(site=FOUR[:3])
    assert status == 0 and "Warning: west leaves: masked sums of both federations" in output
    assert [len(names) for names in registered] == [3, 3, 4, 3]
    text = folder.agreed_file.read_text()
    # A key that was a site's before, another federation's text, and one that nobody could read change nothing.
    for wrong in ({"site": FOUR}, {"name": "other", "site": FOUR[:3]}, {"site": FOUR[:1]}):
        assert agree(**wrong)[0] == 2
    assert folder.agreed_file.read_text() == text

    masked = first.model_copy(update={"sums": "masked"})
    fewer = masked.model_copy(update={"sites": masked.sites[1:]})
    assert subtraction_warning(masked, fewer)
    assert not subtraction_warning(masked, fewer.model_copy(update={"sums": "plain"}))


def test_a_text_that_is_not_agreed_to_changes_nothing(
    folder: FederationFolder, fedskew: FedSkew
) -> None:
    before = folder.agreement_file.read_text()
    status, output, _ = fedskew("federation", "agree", folder.path)  # nobody answers the question
    assert status != 0 and "Agree?" in output
    assert folder.agreement_file.read_text() == before and not folder.agreed_file.exists()


def test_the_superlink_registers_the_agreements_keys_and_forgets_all_others(
    folder: FederationFolder,
) -> None:
    keys = [FOUR[0]["key"], FOUR[1]["key"], public_key("stranger"), FOUR[2]["key"]]
    states = ["online", "online", "online", "unregistered"]
    nodes = [
        SimpleNamespace(node_id=number, public_key=as_flower_has_it(key), status=state)
        for number, (key, state) in enumerate(zip(keys, states, strict=True))
    ]
    asked: list[Any] = []

    class Answering(Control):
        def __init__(self) -> None: ...

        def ask(self, call: str, request: Any) -> Any:
            asked.append(request)
            return SimpleNamespace(nodes_info=nodes)

    Answering().register(folder.agreement)
    removed = [one.node_id for one in asked if isinstance(one, UnregisterNodeRequest)]
    added = [one.name for one in asked if isinstance(one, RegisterNodeRequest)]
    assert (removed, added) == ([2], ["south"])


def test_a_folder_whose_app_is_another_does_not_start(tmp_path: Path) -> None:
    folder = new(tmp_path / "study")
    add(folder, *FOUR[:2])
    folder.check()
    file = folder.agreement_file
    file.write_text(file.read_text().replace(folder.agreement.app, "0" * 64))
    with pytest.raises(DataError) as refused:
        FederationFolder(folder.path).check()
    assert refused.value.key == "app"


def test_a_folder_restored_without_the_superlink_s_goes_on(
    tmp_path: Path, fedskew: FedSkew, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = new(tmp_path / "study")
    add(folder, *FOUR[:2])
    shutil.rmtree(folder.state)
    status, output, errors = fedskew("federation", "agree", folder.path, "--yes")
    assert status == 0 and "The SuperLink is not up" in output, errors
    assert folder.state.stat().st_mode & 0o777 == 0o700

    shutil.rmtree(folder.state)
    served: list[Path] = []
    monkeypatch.setattr(service.os, "execve", lambda *words: served.append(Path.cwd()))
    monkeypatch.setattr(service.os, "umask", lambda mask: 0)
    monkeypatch.chdir(folder.path)
    assert fedskew("federation", "serve", ".")[0] == 0
    assert served == [folder.state.resolve()]


@pytest.mark.slow
def test_the_systemd_unit_lets_an_edit_without_consent_have_no_effect(tmp_path: Path) -> None:
    """Its commands word for word, in the folder where systemd starts them: at the first start and at a later one."""
    folder = new(tmp_path / "study", address=f"localhost:{free_port()}", listen="127.0.0.1")
    add(folder, *FOUR[:2])
    agreed_text = folder.agreement_file.read_bytes()
    commands: dict[str, list[list[str]]] = {"ExecStart": [], "ExecStartPost": []}
    for line in UNIT.read_text().splitlines():
        key, _, command_line = line.partition("=")
        if key in commands:
            here = command_line.replace("/opt/fedskew/.venv/bin", str(Path(sys.executable).parent))
            commands[key].append(shlex.split(here))
    for _ in range(2):
        superlink = subprocess.Popen(commands["ExecStart"][0], cwd=folder.path)
        try:
            for words in commands["ExecStartPost"]:
                subprocess.run(words, cwd=folder.path, check=True, timeout=120)
        finally:
            superlink.terminate()
            superlink.wait(60)
        assert folder.agreed_file.read_bytes() == agreed_text
        with folder.agreement_file.open("a") as edited:
            edited.write("# half an edit\n")
