"""`fedskew-site`: what it refuses, and what it needs no import of."""

import ast
import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import site_agent
from client_app.local_site import NotAllowed
from data import DataError, federate
from data.agreement import mask_key_text
from data.renamed_settings import print_renamed
from site_agent import approval
from site_agent.app_files import app_hash, build, packed_files
from site_agent.approval import approve, approved_app, check_installed
from site_agent.audit import Audit
from site_agent.cli import main
from site_agent.config import read_site
from site_agent.keys import make_key, read_mask_key
from site_agent.preflight import Row, data_of
from site_agent.run_approval import check_approved, hash_of
from site_agent.service import only_one

CODE = {
    "client_app/app.py": b"app = 1\n",
    "data/a.py": b"",
    "site_agent/cli.py": b"",
    "README.md": b"what it is",
}


def written(folder: Path, app: str, **site: str) -> Path:
    """Write federation.toml, site.toml and data of the site `north`, and return site.toml."""
    for name in ("north", "south"):
        if not (folder / name).exists():
            (folder / f"{name}.pub").write_text(make_key(folder / name))
    draw, whole = np.random.default_rng(0), {}
    for count, kind in ((12, "train"), (4, "test")):
        arrays = {
            f"{kind}_images": draw.integers(0, 255, (count, 4, 4), np.uint8),
            f"{kind}_labels": np.arange(count) % 2,
        }
        np.savez(folder / f"{kind}.npz", **arrays)  # type: ignore[arg-type]
    whole = {**np.load(folder / "train.npz"), **np.load(folder / "test.npz")}
    np.savez(folder / "data.npz", **whole)
    text = f'name = "lung"\nclasses = ["no", "yes"]\ninput-shape = "1x4x4"\nmean = [0.5]\nstd = [0.5]\napp = "{app}"\n'
    for name in ("north", "south"):
        text += f'[[site]]\nname = "{name}"\nkey = "{(folder / f"{name}.pub").read_text()}"\n'
    (folder / "federation.toml").write_text(text)
    keys = {
        "federation": "federation.toml",
        "name": "north",
        "data": "npz:data.npz",
        "state": "state",
    } | site
    (folder / "ca.crt").touch()
    link = '[link]\naddress = "127.0.0.1:1"\nkey = "north"\nca = "ca.crt"\n'
    (folder / "site.toml").write_text(
        "".join(f'{key} = "{value}"\n' for key, value in keys.items()) + link
    )
    return folder / "site.toml"


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An app's folder that is what is installed, too."""
    folder = tmp_path / "small-app"
    for name, content in CODE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "small"\nversion = "1.0.0"\ndescription = "An app."\nlicense = {text = "Apache-2.0"}\n'
        '[tool.flwr.app]\npublisher = "nobody"\n[tool.flwr.app.components]\n'
        'serverapp = "client_app.app:app"\nclientapp = "client_app.app:app"\n'
    )
    monkeypatch.setattr(approval, "ROOT", folder)
    monkeypatch.setattr("data.package_files.ROOT", folder)
    return folder


@pytest.fixture
def site(tmp_path: Path, app: Path) -> Path:
    return written(tmp_path, app_hash(packed_files(build(app))))


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Return the exit status of the command line."""
    monkeypatch.setattr(sys, "argv", ["fedskew-site", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_what_is_approved_is_kept_and_shown(
    site: Path, app: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    federation = site.with_name("federation.toml")
    assert run(monkeypatch, "approve", federation, app, "--site", site, "--yes") == 0
    said = capsys.readouterr().out
    place = read_site(site)
    assert (
        place.agreement.sha256 in said
        and place.agreement.app in said
        and "stays here  head-gradients" in said
    )
    assert approved_app(place) == place.agreement.app
    assert place.state.stat().st_mode & 0o077 == 0
    assert run(monkeypatch, "status", "--site", site) == 0
    assert "at work    no" in capsys.readouterr().out
    assert run(monkeypatch, "log", "--verify", "--site", site) == 0
    assert capsys.readouterr().out == "1 lines follow from each other\n"


def test_another_text_than_the_site_s_federation_toml_is_refused(
    site: Path, app: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.toml"
    other.write_text(site.with_name("federation.toml").read_text() + "# a comment\n")
    with pytest.raises(DataError, match=r"is another text than the federation\.toml"):
        approve(read_site(site), other, app, lambda text: pytest.fail("it asks"))
    other.write_bytes(site.with_name("federation.toml").read_bytes())
    assert approve(read_site(site), other, app, lambda text: True)


def test_a_second_approval_shows_what_is_other_than_before(site: Path, app: Path) -> None:
    federation = site.with_name("federation.toml")
    asked: list[str] = []
    assert approve(read_site(site), federation, app, lambda text: not asked.append(text))
    federation.write_text(federation.read_text().replace("lung", "heart"))
    assert approve(read_site(site), federation, app, lambda text: not asked.append(text))
    assert approve(read_site(site), federation, app, lambda text: not asked.append(text))
    heading = "Other than what is approved here:"
    assert [heading in text for text in asked] == [False, True, False]
    changes = asked[1].partition(heading)[2].splitlines()
    changed = [line for line in changes[3:] if line[:1] in ("+", "-")]
    assert len(changed) == 2 and "lung" in changed[0] and "heart" in changed[1]

    place = read_site(site)
    files = {**CODE, "data/a.py": b"other", "data/new.py": b""}
    files.pop("README.md")
    lines = approval.changes_since(place, federation.read_bytes(), files)
    assert lines[2:] == [
        "file removed: 'README.md'",
        "file changed: 'data/a.py'",
        "file added:   'data/new.py'",
        "file removed: 'pyproject.toml'",
    ]
    many = {**CODE, **{f"data/{number}.py": b"" for number in range(50)}}
    lines = approval.changes_since(place, federation.read_bytes(), many)
    assert len(lines) == 2 + approval.LISTED + 1 and lines[-1] == "and 31 files more"


def test_between_two_sites_it_is_said_that_the_other_learns_the_counts(
    site: Path, app: Path, tmp_path: Path
) -> None:
    place = read_site(site)
    line = approval.summary(place, "app").partition("two sites")[2].splitlines()[0]
    assert "south learns this site's exact counts" in line
    keeps = dataclasses.replace(place, allow=frozenset({"model", "scores"}))
    third = dataclasses.replace(place.agreement.sites[1], name="east")
    more = dataclasses.replace(place.agreement, sites=(*place.agreement.sites, third))
    for other in (keeps, dataclasses.replace(place, agreement=more)):
        assert "two sites" not in approval.summary(other, "app")


def test_a_fab_is_approved_as_its_folder_is(site: Path, app: Path, tmp_path: Path) -> None:
    fab = tmp_path / "small.fab"
    fab.write_bytes(build(app))
    assert approve(read_site(site), site.with_name("federation.toml"), fab, lambda text: True)


def test_nothing_is_kept_when_somebody_says_no(site: Path, app: Path) -> None:
    place = read_site(site)
    assert not approve(place, site.with_name("federation.toml"), app, lambda text: False)
    with pytest.raises(DataError, match="nothing is approved"):
        approved_app(place)


def test_another_app_than_the_agreed_is_refused(site: Path, app: Path) -> None:
    (app / "README.md").write_text("what it is not")
    with pytest.raises(DataError, match="its hash is"):
        approve(
            read_site(site),
            site.with_name("federation.toml"),
            app,
            lambda text: pytest.fail("it asks"),
        )


@pytest.mark.parametrize("change", ["changed", "removed", "added"])
def test_an_app_other_than_the_installed_code_is_refused(app: Path, change: str) -> None:
    file = app / "client_app" / "app.py"
    if change == "removed":
        file.unlink()
    else:
        (file if change == "changed" else file.with_name("more.py")).write_text("app = 2\n")
    with pytest.raises(DataError, match=r"client_app/(app|more)\.py is not what is installed"):
        check_installed(CODE, "app")


def test_what_was_approved_once_is_looked_at_again(site: Path, app: Path) -> None:
    federation = site.with_name("federation.toml")
    place = read_site(site)
    approve(place, federation, app, lambda text: True)
    (app / "data" / "a.py").write_text("changed = 1")
    with pytest.raises(DataError, match="is not what is installed"):
        approved_app(place)
    (app / "data" / "a.py").write_bytes(CODE["data/a.py"])
    federation.write_text(federation.read_text().replace("lung", "heart"))
    with pytest.raises(DataError, match=r"another federation\.toml was approved"):
        approved_app(read_site(site))


def test_check_shows_each_class_and_what_is_to_be_done(
    site: Path, app: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    approve(read_site(site), site.with_name("federation.toml"), app, lambda text: True)
    (site.parent / "state").chmod(0o700)
    assert run(monkeypatch, "check", "--site", site) == 0, capsys.readouterr().out
    rows = capsys.readouterr().out.splitlines()
    warnings = [row for row in rows if not row.startswith("ok ")]
    assert [row[:11] for row in warnings] == ["(!) samples"]  # none are agreed
    assert any("no: 6 training samples, 2 test samples" in row for row in rows)
    (site.parent / "state").chmod(0o755)
    (site.parent / "north").chmod(0o644)
    assert run(monkeypatch, "check", "--site", site) == 1
    said = capsys.readouterr().out
    assert "NO  state" in said and "chmod 700" in said and "NO  key" in said and "chmod 600" in said


def test_who_only_trains_needs_no_key(
    site: Path, app: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    approve(read_site(site), site.with_name("federation.toml"), app, lambda text: True)
    site.with_name("state").chmod(0o700)
    site.write_text(site.read_text().partition("[link]")[0])
    assert run(monkeypatch, "check", "--site", site) == 0
    assert "this user trains" in capsys.readouterr().out


def test_check_names_data_that_are_not_the_agreements(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = dict(np.load(site.with_name("data.npz")))
    np.savez(site.with_name("data.npz"), **(arrays | {"train_labels": np.full(12, 2)}))  # type: ignore[arg-type]
    assert run(monkeypatch, "check", "--site", site) == 1
    assert "NO  data" in (said := capsys.readouterr().out) and "train_labels" in said


def test_bad_input_gets_a_sentence_and_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "status", "--site", tmp_path / "none.toml") == 2
    assert "none.toml" in capsys.readouterr().err
    assert run(monkeypatch, "start", "--only", "link", "--site", tmp_path / "none.toml") == 2
    assert "--secret" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        monkeypatch.setattr(sys, "argv", ["fedskew-site", "nothing"])
        main()


def test_start_needs_an_approval(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "start", "--site", site) == 2
    assert "nothing is approved" in capsys.readouterr().err


def test_a_run_is_deleted_with_the_copy_of_the_data(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = read_site(site)
    for folder in (place.run_folder("a"), place.run_folder("b"), place.cache):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    assert run(monkeypatch, "delete-run", "a", "--site", site) == 0
    assert capsys.readouterr().err == ""
    assert (
        not place.run_folder("a").exists()
        and not place.cache.exists()
        and place.run_folder("b").exists()
    )
    assert b'"event": "forgotten", "run": "a"' in Audit(place.state / "audit.jsonl").lines()[-1]
    for run_id in ("a", "../b"):
        assert run(monkeypatch, "delete-run", run_id, "--site", site) == 2
    assert place.run_folder("b").exists()


def test_the_old_name_of_delete_run_still_works(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    print_renamed.cache_clear()
    folder = read_site(site).run_folder("a")
    folder.mkdir(parents=True)
    assert run(monkeypatch, "forget", "a", "--site", site) == 0
    assert not folder.exists()
    assert "fedskew-site: forget is called delete-run now" in capsys.readouterr().err
    assert run(monkeypatch, "--help") == 0
    shown = capsys.readouterr().out
    assert "delete-run" in shown and "forget" not in shown


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["start", "--only", "both"], 2, "'both' is not one of 'link', 'train'"),
        (["start", "--port", "many"], 2, "'many' is not a valid int"),
        (["approve", "federation.toml"], 2, "Missing argument 'APP'"),
        (["log", "--verfy"], 2, "No such option"),
        (["nothing"], 2, "No such command 'nothing'"),
        ([], 2, "Usage: fedskew-site"),
        (["-h"], 0, ""),
        (["start", "--help"], 0, ""),
    ],
)
def test_a_wrong_word_shows_the_usage_and_ends_with_2(
    words: list[str],
    status: int,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, *words) == status
    assert sentence in capsys.readouterr().err


def test_help_imports_nothing_that_takes_long() -> None:
    script = """
import sys
from site_agent.cli import main
sys.argv = ["fedskew-site", "start", "--help"]
try:
    main()
except SystemExit as ended:
    assert not ended.code
loaded = {name.split(".")[0] for name in sys.modules}
print("loaded:", *sorted(loaded & {"numpy", "torch", "flwr", "rich", "cryptography", "data", "typer"}))
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines()[-1] == "loaded: typer"


def test_key_prints_the_lines_of_federation_toml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "key", tmp_path / "node", "--name", "west") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["[[site]]", 'name = "west"']
    assert lines[2].startswith('key = "ecdsa-sha2-nistp384 ')
    public = mask_key_text(read_mask_key(tmp_path / "mask.key").public_key())
    assert lines[3:] == [f'mask-key = "{public}"']
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
    assert run(monkeypatch, "key", tmp_path / "node") == 2

    # Neither key is made where one of them would be written over.
    assert run(monkeypatch, "key", tmp_path / "other") == 2
    assert "mask.key: is there already" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
    other_mask = ("--mask-key", tmp_path / "other-mask")
    assert run(monkeypatch, "key", tmp_path / "other", *other_mask) == 0


def test_the_hospitals_command_imports_few_packages() -> None:
    """Itself; flwr brings others with it."""
    allowed = {
        "click",
        "client_app",
        "cryptography",
        "data",
        "filelock",
        "flwr",
        "numpy",
        "prometheus_client",
        "safetensors",
        "site_agent",
        "torch",
        "typer",
    }
    for file in Path(site_agent.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            packages = {name.split(".")[0] for name in names}
            assert packages <= allowed | sys.stdlib_module_names, file


def test_a_hospital_needs_few_packages() -> None:
    """Asked in a new process. flwr brings typer and rich."""
    script = """
import pkgutil, sys, importlib, site_agent
for module in pkgutil.iter_modules(site_agent.__path__, "site_agent."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
import client_app.app
from client_app.models import build
build("mlp-bn", (1, 8, 8), 3, 0)
build("resnet-8", (1, 8, 8), 3, 0)
build("resnet-50", (1, 8, 8), 3, 0)
others = "ray sklearn scipy torchvision matplotlib pandas jinja2 strategies server_app fedskew".split()
print(*({name.split(".")[0] for name in sys.modules} & {*others}))
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == ""


def with_policy(site: Path, text: str) -> Path:
    site.write_text(f"{site.read_text()}\n[policy]\n{text}\n")
    return site


def test_approve_shows_the_limits_of_policy_and_what_a_run_sets(
    site: Path, app: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("approve", site.with_name("federation.toml"), app, "--site", site, "--yes")
    assert run(monkeypatch, *words) == 0
    said = capsys.readouterr().out
    assert "samples in a mini-batch 8, steps 1, different samples 8" in said
    assert "at most 1000 rounds; models: any; local methods: any" in said
    assert "local-steps, batch-size" in said and "without being asked about" in said
    assert "samples     north any, south any" in said
    limits = "min-batch-size = 16\nmin-steps = 4\nmin-update-samples = 20\nmax-rounds = 30\n"
    with_policy(site, f'{limits}models = ["mlp-bn"]\nmethods = []\napprove-runs = true')
    assert run(monkeypatch, *words) == 0
    said = capsys.readouterr().out
    assert "samples in a mini-batch 16, steps 4, different samples 20" in said
    assert "at most 30 rounds; models: mlp-bn; local methods: none" in said
    assert "needs `fedskew-site approve-run`" in said


def test_approve_refuses_a_policy_that_names_nothing(
    site: Path, app: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_policy(site, 'models = ["resnet"]')
    words = ("approve", site.with_name("federation.toml"), app, "--site", site, "--yes")
    assert run(monkeypatch, *words) == 2
    assert "models = 'resnet': must be some of small-cnn" in capsys.readouterr().err


def test_a_run_that_waits_is_listed_shown_and_approved(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place, settings = read_site(with_policy(site, "approve-runs = true")), '{"rounds": 20}'
    code = hash_of(settings)
    with pytest.raises(NotAllowed):
        check_approved(place, settings)
    assert run(monkeypatch, "runs", "--site", site) == 0
    assert capsys.readouterr().out == f"waits      {code}\n"
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert run(monkeypatch, "approve-run", code, "--site", site) == 1
    assert capsys.readouterr().out == f"rounds = 20\nsha256 {code}\nnot approved\n"
    with pytest.raises(NotAllowed):
        check_approved(place, settings)
    assert run(monkeypatch, "approve-run", code, "--site", site, "--yes") == 0
    check_approved(place, settings)
    assert run(monkeypatch, "runs", "--site", site) == 0
    assert capsys.readouterr().out.endswith(f"approved   {code}\n")
    assert (
        f'"event": "run approved", "settings": "{code}"'.encode()
        in Audit(place.state / "audit.jsonl").lines()[-1]
    )
    assert run(monkeypatch, "approve-run", "0" * 64, "--site", site) == 2
    assert "no run with these settings waits" in capsys.readouterr().err


def test_check_looks_for_test_samples_that_are_trained_on(
    site: Path,
) -> None:
    def rows() -> list[Row]:
        return [row for row in data_of(read_site(site)) if row.subject == "copies"]

    (fine,) = rows()
    assert fine.holds and not fine.warning
    held = dict(np.load(site.parent / "data.npz"))
    for number, holds in ((3, True), (len(held["test_images"]), False)):
        held["test_images"][:number] = held["train_images"][:number]
        np.savez(site.parent / "data.npz", **held)
        federate.cache_clear()
        (row,) = rows()
        assert row.holds == holds and row.warning == holds
        assert f"{number} of" in row.text or f"all {number} test images" in row.text


def test_a_health_check_looks_at_the_lock_alone(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedskew-site", "status", "--at-work", "--site", str(site)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1  # nothing was ever started: there is no state
    state = read_site(site).state
    state.mkdir()
    with only_one(state), pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
