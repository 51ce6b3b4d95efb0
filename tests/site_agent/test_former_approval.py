"""A site keeps its former approval for some hours: what is kept, who is answered under it, and when it ends."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from safetensors.torch import save_file

from data import DataError
from data.agreement import read_agreement
from site_agent import approval, approved_texts, former_approval
from site_agent.app_files import app_hash, build, packed_files
from site_agent.approval import approve, approved_app, former_status
from site_agent.approved_texts import ApprovedTexts, NotApproved, TextNotApproved
from site_agent.config import Site, read_site
from site_agent.flower_app import InstalledApp
from site_agent.former_approval import FORMER, as_former, kept_former, read_approval
from site_agent.pool import SiteApp
from site_agent.preflight import offline
from site_agent.report import report
from site_agent.sum_ledger import SumLedger
from tests.site_agent.test_command import CODE, run
from tests.site_files import agreed, arrays, public_key, site_entries, with_mask_keys, write

THREE = with_mask_keys()


class Clock:
    """A clock that stands still until somebody sets it."""

    def __init__(self) -> None:
        self.time = datetime(2026, 11, 26, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.time

    def advance(self, **by: float) -> None:
        self.time += timedelta(**by)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which approvals end."""
    clock = Clock()
    for module in (former_approval, approval, approved_texts):
        monkeypatch.setattr(module, "now", clock)
    return clock


class Hospital:
    """The folder of the site `north`, and the commands of somebody there."""

    def __init__(self, folder: Path, app: Path) -> None:
        self.folder = folder
        self.app = app
        self.site_file = write(folder / "site.toml", site_entries())
        np.savez(folder / "data.npz", **arrays(0))  # type: ignore[arg-type]

    @property
    def site(self) -> Site:
        return read_site(self.site_file)

    @property
    def kept(self) -> Path:
        return self.site.state / "approved" / FORMER

    def receive(self, **changes: Any) -> str:
        """Put another federation.toml in place, and return its sha256."""
        code = app_hash(packed_files(build(self.app)))
        entries = agreed(**{"site": THREE, "app": code, **changes})
        file = self.folder / "federation.toml"
        write(file, entries)
        return read_agreement(file).sha256

    def approve(self, hours: float = 0.0) -> str:
        """Approve what was received, and return what is shown."""
        shown: list[str] = []

        def ask(text: str) -> bool:
            shown.append(text)
            return True

        assert approve(self.site, self.folder / "federation.toml", self.app, ask, hours)
        return shown[0]

    def texts(self) -> ApprovedTexts:
        """Return what a process answers that is started now."""

        def make_code(site: Site, files: Mapping[str, bytes], folder: Path) -> Any:
            return SiteApp(site, lambda message, context: message), None

        return ApprovedTexts(self.site_file, self.site, make_code)

    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.site.audit.lines()]


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An app's folder that is what is installed, too."""
    folder = tmp_path / "small-app"
    for name, content in CODE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    components = {"serverapp": "client_app.app:app", "clientapp": "client_app.app:app"}
    project = {
        "project": {"name": "small", "version": "1.0.0", "description": "An app.",
                    "license": {"text": "Apache-2.0"}},
        "tool": {"flwr": {"app": {"publisher": "nobody", "components": components}}},
    }  # fmt: skip
    (folder / "pyproject.toml").write_text(tomli_w.dumps(project))
    install(monkeypatch, folder)
    return folder


def install(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let an app's folder be what is installed here."""
    monkeypatch.setattr(approval, "ROOT", folder)
    monkeypatch.setattr("data.package_files.ROOT", folder)


def next_server(app: Path) -> Path:
    """Return a copy of an app of which only what runs at the coordinator differs."""
    copy = app.with_name("next-app")
    shutil.copytree(app, copy)
    (copy / "README.md").write_text("what it is now")
    return copy


@pytest.fixture
def hospital(tmp_path: Path, app: Path, clock: Clock) -> Hospital:
    return Hospital(tmp_path, app)


def text_for(texts: ApprovedTexts, stated: str, app: str = "") -> Any:
    """Return the text under which a message is answered that states one, with that text's app or another."""
    known = {text.federation: text.app for text in (texts.current, texts.former) if text}
    return texts.chosen(stated, app or known.get(stated, texts.current.app))


# ---- what is kept ----------------------------------------------------------------------------------------------------


def test_without_the_option_the_former_approval_ends_at_once(hospital: Hospital) -> None:
    first = hospital.receive()
    assert "former" not in hospital.approve()
    second = hospital.receive(min_sites=3)
    shown = hospital.approve()
    assert f"former      {first[:16]}" in shown and "from now on its runs are refused" in shown
    assert not hospital.kept.exists() and kept_former(hospital.site) is None
    texts = hospital.texts()
    assert text_for(texts, second).federation == second
    with pytest.raises(TextNotApproved, match=f"^federation.toml {first[:16]} is not approved"):
        text_for(texts, first)


def test_a_kept_approval_is_answered_until_its_end(hospital: Hospital, clock: Clock) -> None:
    first = hospital.receive()
    hospital.approve()
    second = hospital.receive(min_sites=3)
    shown = hospital.approve(hours=2)
    assert "its runs are still answered here until 2026-11-26 14:00:00 UTC" in shown
    former = read_approval(hospital.kept)
    assert former.sha256 == first and approved_app(hospital.site) == former.app
    texts = hospital.texts()
    clock.advance(hours=1, minutes=59, seconds=59)
    text = text_for(texts, first)
    assert text.federation == first and text.code.site.agreement.min_sites == 2
    assert text_for(texts, second).code.site.agreement.min_sites == 3
    clock.advance(seconds=1)
    ended = f"^the former federation.toml {first[:16]} was approved at this site until 2026-11-26 14:00:00 UTC$"
    with pytest.raises(TextNotApproved, match=ended):
        text_for(texts, first)
    assert text_for(texts, second).federation == second


def test_the_site_s_own_policy_holds_for_both_texts(hospital: Hospital) -> None:
    first = hospital.receive()
    hospital.approve()
    second = hospital.receive(min_sites=3)
    policy = {"allow": ["model"], "min-steps": 7}
    write(hospital.site_file, site_entries(policy=policy))
    hospital.approve(hours=1)
    texts = hospital.texts()
    for code in (first, second):
        site = text_for(texts, code).code.site
        assert site.allow == {"model"} and site.min_steps == 7


def test_a_third_text_ends_the_first(hospital: Hospital) -> None:
    first = hospital.receive()
    hospital.approve()
    second = hospital.receive(min_sites=3)
    hospital.approve(hours=5)
    third = hospital.receive(mean=[0.4])
    assert f"former      {second[:16]}" in hospital.approve(hours=5)
    texts = hospital.texts()
    assert text_for(texts, second).federation == second
    assert text_for(texts, third).federation == third
    with pytest.raises(TextNotApproved, match=f"{first[:16]} is not approved"):
        text_for(texts, first)


def test_the_same_command_changes_the_end_and_ends_it_early(
    hospital: Hospital, clock: Clock
) -> None:
    first = hospital.receive()
    hospital.approve()
    second = hospital.receive(min_sites=3)
    hospital.approve(hours=1)
    assert "until 2026-11-26 22:00:00 UTC" in hospital.approve(hours=10)
    texts = hospital.texts()
    clock.advance(hours=9)
    assert text_for(texts, first).federation == first
    assert "from now on its runs are refused here" in hospital.approve()
    assert not hospital.kept.exists()
    with pytest.raises(TextNotApproved, match="is not approved"):
        text_for(texts, first)
    assert text_for(texts, second).federation == second


def test_going_back_to_the_former_text_makes_the_other_one_former(hospital: Hospital) -> None:
    first = hospital.receive()
    hospital.approve()
    second = hospital.receive(min_sites=3)
    hospital.approve(hours=1)
    assert hospital.receive() == first
    hospital.approve(hours=1)
    texts = hospital.texts()
    assert texts.current.federation == first
    assert texts.former and texts.former.federation == second


# ---- what cannot be kept ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [-1.0, 721.0, float("nan"), float("inf")])
def test_hours_that_are_none_are_refused(
    hospital: Hospital,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    hours: float,
) -> None:
    hospital.receive()
    hospital.approve()
    hospital.receive(min_sites=3)
    before = hospital.site.audit.lines()
    words = ["approve", hospital.folder / "federation.toml", hospital.app, "--yes"]
    words += ["--site", hospital.site_file, "--keep-former"]
    assert run(monkeypatch, *words, hours) == 2
    sentence = f"fedskew-site: --keep-former = {hours}: must be 0 (not at all) to 720 hours\n"
    assert capsys.readouterr().err == sentence
    assert hospital.site.audit.lines() == before
    assert run(monkeypatch, *words, 720) == 0  # the control


def test_there_must_be_a_former_approval(hospital: Hospital) -> None:
    hospital.receive()
    with pytest.raises(DataError, match=r"no other federation\.toml was approved here before"):
        hospital.approve(hours=1)
    with pytest.raises(DataError, match="nothing is approved"):
        approved_app(hospital.site)
    hospital.approve()
    with pytest.raises(DataError, match=r"no other federation\.toml was approved here before"):
        hospital.approve(hours=1)


def test_another_release_cannot_answer_the_former_text(
    hospital: Hospital, app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hospital.receive()
    hospital.approve()
    former = read_approval(hospital.site.state / "approved")
    hospital.app = next_server(app)
    (hospital.app / "client_app/app.py").write_text("app = 2\n")
    install(monkeypatch, hospital.app)
    second = hospital.receive()
    with pytest.raises(DataError) as refused:
        hospital.approve(hours=1)
    assert refused.value.key == "--keep-former"
    assert "client_app/app.py is not what is installed" in str(refused.value)
    assert read_approval(hospital.site.state / "approved").sha256 == former.sha256
    hospital.approve()
    assert approved_app(hospital.site) and hospital.texts().current.federation == second


def test_another_server_can(hospital: Hospital, app: Path) -> None:
    """The control: what runs at the site is the same in both releases."""
    first = hospital.receive()
    hospital.approve()
    hospital.app = next_server(app)
    second = hospital.receive()
    hospital.approve(hours=1)
    texts = hospital.texts()
    assert texts.former and texts.former.app != texts.current.app
    assert text_for(texts, first).app == texts.former.app
    with pytest.raises(
        NotApproved,
        match=f"is not approved at this site for the former federation.toml {first[:16]}",
    ):
        texts.chosen(first, texts.current.app)
    with pytest.raises(NotApproved, match=r"^the app [0-9a-f]{16} is not approved at this site$"):
        texts.chosen(second, texts.former.app)


@pytest.mark.parametrize("kind", ["module", "weights"])
def test_the_files_of_the_former_text_must_be_there(hospital: Hospital, kind: str) -> None:
    """site.toml names one module and one file of weights, and the texts may agree to different ones."""
    models = pytest.importorskip("torchvision.models")
    file = hospital.folder / {"module": "agreed_file.py", "weights": "a.safetensors"}[kind]

    def write_file(number: int) -> None:
        if kind == "module":
            file.write_text(f"x = {number}\n")
        else:
            torch.manual_seed(number)
            save_file(models.shufflenet_v2_x0_5(weights=None).state_dict(), file)

    write_file(1)
    code = hashlib.sha256(file.read_bytes()).hexdigest()
    agreed_to: dict[str, Any] = {"module": {"name": "agreed_file", "sha256": code}}
    if kind == "weights":
        agreed_to = {"backbone": "torchvision:shufflenet_v2_x0_5", "weights": code}
    write(hospital.site_file, site_entries(**{kind: file.name}))
    hospital.receive(**agreed_to)
    hospital.approve()
    write_file(2)
    hospital.receive()
    with pytest.raises(DataError, match=f"cannot be kept.*has sha256.*{code}"):
        hospital.approve(hours=1)
    write_file(1)
    hospital.approve(hours=1)  # the control


@pytest.mark.parametrize("has_module", [True, False])
def test_an_agreed_module_may_import_the_server_s_code_which_is_then_approved_too(
    hospital: Hospital, app: Path, has_module: bool
) -> None:
    changes: dict[str, Any] = {}
    if has_module:
        file = hospital.folder / "agreed_file.py"
        file.write_text("x = 1\n")
        code = hashlib.sha256(file.read_bytes()).hexdigest()
        changes["module"] = {"name": "agreed_file", "sha256": code}
        write(hospital.site_file, site_entries(module=file.name))
    hospital.receive(**changes)
    hospital.approve()
    (approved,) = (entry for entry in hospital.entries() if entry["event"] == "approved")
    assert approved.get("module") == (changes["module"]["sha256"] if has_module else None)

    hospital.app = next_server(app)
    (hospital.app / "strategies").mkdir()
    (hospital.app / "strategies" / "other.py").write_text("x = 2\n")
    hospital.receive(**changes)
    if not has_module:
        hospital.approve()  # no code of the server runs at this site
        return
    with pytest.raises(DataError, match=r"strategies/other\.py is not what is installed"):
        hospital.approve()


def test_a_site_has_another_number_and_name_in_the_former_text(hospital: Hospital) -> None:
    east, north, south = THREE[1], THREE[0], THREE[2]
    first = hospital.receive(site=[east, north, south])
    hospital.approve()
    renamed = {**north, "name": "far-north"}
    hospital.receive(site=[renamed, south], sums="plain")
    write(hospital.site_file, site_entries(name="far-north"))
    hospital.approve(hours=1)
    texts = hospital.texts()
    former, current = text_for(texts, first).code.site, texts.current.code
    assert (former.name, former.number) == ("north", 1)
    assert isinstance(current, SiteApp)
    assert (current.site.name, current.site.number) == ("far-north", 0)


def test_a_site_that_is_not_in_the_former_text_keeps_none_of_it(hospital: Hospital) -> None:
    hospital.receive()
    hospital.approve()
    other = {**THREE[0], "name": "other", "key": public_key("other")}
    hospital.receive(site=[other, *THREE[1:]])
    write(hospital.site_file, site_entries(name="other"))
    with pytest.raises(DataError, match="has no site with the key or the name of other"):
        hospital.approve(hours=1)
    by_name = {**THREE[0], "key": public_key("other")}  # the control: the name stays
    hospital.receive(site=[by_name, *THREE[1:]])
    write(hospital.site_file, site_entries())
    hospital.approve(hours=1)
    former = kept_former(hospital.site)
    assert former and as_former(hospital.site, former).number == 0


# ---- a site that is running ------------------------------------------------------------------------------------------


def test_a_running_site_takes_both_texts_over(hospital: Hospital) -> None:
    first = hospital.receive()
    hospital.approve()
    texts = hospital.texts()
    code = text_for(texts, first).code
    second = hospital.receive(min_sites=3)
    assert text_for(texts, first).code is code, "it is received and not approved"
    with pytest.raises(TextNotApproved, match=f"{second[:16]} is not approved"):
        text_for(texts, second)
    hospital.approve(hours=1)
    assert text_for(texts, second).federation == second
    assert text_for(texts, first).until is not None
    *_, approved, taken = hospital.entries()
    assert approved["event"] == "approved" and taken["event"] == "taken over"
    for entry in (approved, taken):
        assert (entry["federation"], entry["former"]) == (second, first)
        assert entry["until"] == "2026-11-26T13:00:00+00:00"


def test_a_running_site_ends_the_former_text_without_the_option(hospital: Hospital) -> None:
    first = hospital.receive()
    hospital.approve()
    texts = hospital.texts()
    second = hospital.receive(min_sites=3)
    hospital.approve()
    assert text_for(texts, second).federation == second
    with pytest.raises(TextNotApproved, match=f"{first[:16]} is not approved"):
        text_for(texts, first)


def test_an_approval_that_is_half_written_changes_nothing(hospital: Hospital) -> None:
    first = hospital.receive()
    hospital.approve()
    texts = hospital.texts()
    second = hospital.receive(min_sites=3)
    approved = hospital.site.state / "approved"
    whole = (approved / "federation.toml").read_bytes()
    (approved / "federation.toml").write_bytes((hospital.folder / "federation.toml").read_bytes())
    (approved / "approval.json").touch()
    assert text_for(texts, first).federation == first
    (approved / "federation.toml").write_bytes(whole)
    hospital.approve(hours=1)
    assert text_for(texts, second).federation == second


def test_a_crash_between_the_two_leaves_the_former_text_valid(
    hospital: Hospital, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = hospital.receive()
    hospital.approve()
    texts = hospital.texts()
    second = hospital.receive(min_sites=3)

    def crash(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as during:
        during.setattr(approval, "store", crash)
        with pytest.raises(OSError):
            hospital.approve(hours=1)
    assert text_for(texts, first).federation == first
    hospital.approve(hours=1)
    assert text_for(texts, second).federation == second
    assert text_for(texts, first).until is not None


def test_a_message_between_the_two_writes_is_answered(
    hospital: Hospital, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former approval is there, the new one not yet, and site.toml has the new text's name already."""
    first = hospital.receive()
    hospital.approve()
    texts = hospital.texts()
    second = hospital.receive(site=[{**THREE[0], "name": "far-north"}, *THREE[1:]])
    write(hospital.site_file, site_entries(name="far-north"))
    answered: list[str] = []

    def store(*arguments: Any) -> None:
        text = text_for(texts, first)
        answered.append(text.code.site.name)
        assert text.until is None, "it is the current text still"
        former_approval.store(*arguments)

    monkeypatch.setattr(approval, "store", store)
    hospital.approve(hours=1)
    assert answered == ["north"]
    assert text_for(texts, second).code.site.name == "far-north"
    assert text_for(texts, first).until is not None


def test_another_release_needs_a_start(
    hospital: Hospital, app: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process answers with the code that it has loaded, and the new text says other code."""
    first = hospital.receive()
    hospital.approve()
    texts = hospital.texts()
    hospital.app = next_server(app)
    (hospital.app / "client_app/app.py").write_text("app = 2\n")
    install(monkeypatch, hospital.app)
    second = hospital.receive()
    hospital.approve()
    restart = (
        f"^this site has approved federation.toml {second[:16]} and has to be started again for it$"
    )
    with pytest.raises(TextNotApproved, match=restart):
        text_for(texts, second)
    with pytest.raises(TextNotApproved, match=f"{first[:16]} is not approved"):
        text_for(texts, first)
    assert "is not the release that this process was started with" in caplog.text
    assert text_for(hospital.texts(), second).federation == second  # the control: started again


@pytest.mark.parametrize(
    "record", ["", "[]", "{}", '{"federation": 1, "app": 2, "until": "never"}']
)
def test_a_damaged_former_approval_is_none(hospital: Hospital, record: str) -> None:
    first = hospital.receive()
    hospital.approve()
    hospital.receive(min_sites=3)
    hospital.approve(hours=1)
    assert hospital.texts().former
    (hospital.kept / "approval.json").write_text(record)
    assert former_status(hospital.site) is None and hospital.texts().former is None
    with pytest.raises(TextNotApproved, match=f"{first[:16]} is not approved"):
        text_for(hospital.texts(), first)


@pytest.mark.parametrize("name", ["federation.toml", "app.fab"])
def test_a_former_approval_whose_files_were_changed_is_none(hospital: Hospital, name: str) -> None:
    hospital.receive()
    hospital.approve()
    hospital.receive(min_sites=3)
    hospital.approve(hours=1)
    hospital.receive(mean=[0.4])
    other = {"federation.toml": hospital.folder / name, "app.fab": hospital.site_file}[name]
    shutil.copy(other, hospital.kept / name)
    assert kept_former(hospital.site) is None


def test_a_process_whose_former_app_is_not_installed_says_so(
    hospital: Hospital, app: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = hospital.receive()
    hospital.approve()
    hospital.app = next_server(app)
    hospital.receive()
    hospital.approve(hours=1)
    monkeypatch.setattr(approved_texts, "check_can_run", refuse_former(first))
    texts = hospital.texts()
    with pytest.raises(
        TextNotApproved, match=f"{first[:16]} cannot be answered at this site any more"
    ):
        text_for(texts, first)
    assert "data/a.py is not what is installed" in caplog.text


def refuse_former(code: str) -> Any:
    """Return a check of the installed code that refuses the app of one text."""

    def check(site: Site, files: Mapping[str, bytes], name: str) -> None:
        if site.agreement.sha256 == code:
            raise DataError("data/a.py is not what is installed", where=name)

    return check


# ---- what is said ----------------------------------------------------------------------------------------------------


def test_masked_sums_of_both_texts_are_warned_of(hospital: Hospital, clock: Clock) -> None:
    four = [*THREE, *with_mask_keys(("west",))]
    hospital.receive(site=four)
    hospital.approve()
    hospital.receive(site=THREE)
    warning = "west leaves: masked sums of both federations differ by west alone"
    for shown in (hospital.approve(hours=1), hospital.approve(hours=2)):
        assert shown.count(warning) == 1
    status = former_status(hospital.site)
    assert status and status.is_warning and warning in status.text
    hospital.receive(site=THREE, min_sites=3)
    assert warning not in hospital.approve(hours=1)  # the control: the same sites


def test_each_text_has_a_ledger_of_sums_of_its_own(hospital: Hospital) -> None:
    first = hospital.receive()
    hospital.approve()
    second = hospital.receive(min_sites=3)
    hospital.approve(hours=1)
    texts = hospital.texts()
    folders = [SumLedger(text_for(texts, code).code.site).folder.name for code in (first, second)]
    assert folders == [first[:32], second[:32]]


def test_check_status_and_report_say_until_when(
    hospital: Hospital,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = hospital.receive()
    hospital.approve()
    assert "former" not in [row.subject for row in offline(hospital.site, hospital.site_file)]
    hospital.receive(min_sites=3)
    hospital.approve(hours=1)
    (row,) = [one for one in offline(hospital.site, hospital.site_file) if one.subject == "former"]
    assert row.holds and not row.warning
    text = "its runs are answered until 2026-11-26 13:00:00 UTC"
    assert f"chest {first[:16]}" in row.text and row.text.endswith(text)
    assert run(monkeypatch, "status", "--site", hospital.site_file) == 0
    assert f"former     {row.text}\n" in capsys.readouterr().out
    site = hospital.site
    assert f"and the former {first[:16]} until 2026-11-26T13:00:00" in report(site, site.audit)
    clock.advance(hours=1)
    assert "former" not in [row.subject for row in offline(site, hospital.site_file)]
    assert run(monkeypatch, "status", "--site", hospital.site_file) == 0
    assert (
        f"{first[:16]}, app {site.agreement.app[:16]}: ended 2026-11-26 13:00:00 UTC"
        in capsys.readouterr().out
    )


# ---- another app than FedSkew's --------------------------------------------------------------------------------------


def own_app(folder: Path, text: str) -> Path:
    """Write a Flower app of one module, and return its folder."""
    folder.mkdir()
    (folder / "ward_app.py").write_text(text)
    components = {"serverapp": "ward_app:app", "clientapp": "ward_app:app"}
    project = {
        "project": {"name": "ward", "version": "1.0.0", "description": "An app.",
                    "license": {"text": "Apache-2.0"}},
        "tool": {"flwr": {"app": {"publisher": "nobody", "components": components}}},
    }  # fmt: skip
    (folder / "pyproject.toml").write_text(tomli_w.dumps(project))
    return folder


def test_another_app_is_told_from_its_former_one_by_its_hash(tmp_path: Path, clock: Clock) -> None:
    """Its messages state no federation.toml."""
    hospital = Hospital(tmp_path, own_app(tmp_path / "first", "app = 1\n"))
    write(hospital.site_file, site_entries(app={}))
    hospital.receive()
    hospital.approve()

    def make_code(site: Site, files: Mapping[str, bytes], folder: Path) -> Any:
        return InstalledApp(site, files, folder), None

    texts = ApprovedTexts(hospital.site_file, hospital.site, make_code)
    first = texts.current.app
    assert texts.chosen("", first) is texts.current
    hospital.app = own_app(tmp_path / "second", "app = 2\n")
    hospital.receive()
    hospital.approve(hours=1)
    second = app_hash(packed_files(build(hospital.app)))
    assert texts.chosen("", second) is texts.current
    former = texts.chosen("", first)
    assert former is texts.former
    copies = [text.code.folder / "ward_app.py" for text in (texts.current, former)]  # type: ignore[union-attr]
    assert [copy.read_text() for copy in copies] == ["app = 2\n", "app = 1\n"]
    with pytest.raises(NotApproved, match=r"^the app 0{16} is not approved at this site$"):
        texts.chosen("", "0" * 64)
    clock.advance(hours=1)
    with pytest.raises(TextNotApproved, match="was approved at this site until"):
        texts.chosen("", first)
    assert texts.chosen("", second) is texts.current
