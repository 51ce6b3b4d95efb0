"""A method of the user's own: loaded by MODULE:CLASS, tried, composed, hashed, refused with the reason."""

import importlib
import json
import sys
from pathlib import Path

import pytest

import fedskew
from client_app.run_spec import RunSpec
from client_app.user_code import FOLDER
from client_app.variants import VARIANTS
from data import SettingError
from fedskew.flower.variants import variants_of
from server_app import method_checks, plugins
from server_app.methods import METHODS, Method
from server_app.plugins import check_new_methods
from server_app.settings import parse
from strategies import SERVER_METHODS

MODULE = """
import random
from dataclasses import dataclass
from typing import ClassVar

import torch
from client_app.client import Contribution, TensorSpec, Upload, Variant, integers
from server_app.methods import Method
from strategies.core.server import Deployment, ServerMethod


@dataclass(frozen=True)
class Halved(Variant):
    name: ClassVar[str] = "halved"
    share: float = 0.5

    def loss_weights(self, client, logits_BC, labels_B):
        return self.share * torch.ones_like(logits_BC[:, 0])


@dataclass(frozen=True)
class Counting(Variant):
    name: ClassVar[str] = "counting"

    def after(self, client, trained):
        return Contribution(upload={"counts": client.counts_C})

    @property
    def upload(self):
        return Upload(tensors=self.tensors)

    def tensors(self, model, shared):
        return {"counts": TensorSpec(torch.float64, (model.head.out_features,))}


@dataclass(frozen=True)
class Largest(ServerMethod):
    name: ClassVar[str] = "largest"
    uses: ClassVar[str] = "counting"

    def combine(self, server, state, updates):
        return max(updates, key=lambda update: update.uploads["counting"]["counts"].max().item()).shared, {}


PAIR = Method("pair", "the client of the largest class wins", "made up", "class counts", ("counting",), "largest",
              parts=(Counting, Largest))


class Bare(Halved):
    pass


@dataclass(frozen=True)
class Nameless(Variant):
    share: float = 0.5


@dataclass(frozen=True)
class Taken(Variant):
    name: ClassVar[str] = "proximal"


@dataclass(frozen=True)
class Listing(Variant):
    name: ClassVar[str] = "listing"
    shares: tuple = ()


@dataclass(frozen=True)
class Stating(Variant):
    name: ClassVar[str] = "stating"
    less: int = 0

    @property
    def upload(self):
        return Upload("class-counts", self.tensors, question="sizes")

    def tensors(self, model, shared):
        return {"sizes": integers(model.head.out_features - self.less)}

    def answer(self, client):
        return {"sizes": client.counts_C.long()}


@dataclass(frozen=True)
class Readying(Stating):
    name: ClassVar[str] = "readying"

    @property
    def upload(self):
        return Upload("class-counts", self.tensors, question="readiness")


@dataclass(frozen=True)
class Momentum(Halved):
    name: ClassVar[str] = "momentum"


@dataclass(frozen=True)
class Understating(Stating):
    name: ClassVar[str] = "understating"
    less: int = 1


@dataclass(frozen=True)
class Idle(ServerMethod):
    name: ClassVar[str] = "idle"


@dataclass(frozen=True)
class Dividing(Variant):
    name: ClassVar[str] = "dividing"

    def loss_weights(self, client, logits_BC, labels_B):
        return (1 / client.counts_C).to(logits_BC)[labels_B] * (1 / client.counts_C.min().item())


@dataclass(frozen=True)
class Rolling(Variant):
    name: ClassVar[str] = "rolling"

    def loss_weights(self, client, logits_BC, labels_B):
        return random.random() * torch.ones_like(logits_BC[:, 0])


@dataclass(frozen=True)
class Spoiling(Variant):
    name: ClassVar[str] = "spoiling"

    def after(self, client, trained):
        next(iter(client.start.values())).zero_()
        return Contribution()


@dataclass(frozen=True)
class Zeroing(ServerMethod):
    name: ClassVar[str] = "zeroing"

    def combine(self, server, state, updates):
        for tensor in updates[0].shared.values():
            tensor.zero_()
        return updates[0].shared, {}


@dataclass(frozen=True)
class Infinite(ServerMethod):
    name: ClassVar[str] = "infinite"

    def combine(self, server, state, updates):
        return {name: tensor / 0 for name, tensor in updates[0].shared.items()}, {}


@dataclass(frozen=True)
class Shrunk(ServerMethod):
    name: ClassVar[str] = "shrunk"

    def combine(self, server, state, updates):
        return dict(list(updates[0].shared.items())[:-1]), {}


@dataclass(frozen=True)
class Watching(ServerMethod):
    name: ClassVar[str] = "watching"

    def deploy(self, server, state, shared, updates):
        return Deployment({}, state, {"seen": float(len(updates))})


@dataclass(frozen=True)
class Denying(ServerMethod):
    name: ClassVar[str] = "denying"
    adds_model: ClassVar[bool] = False

    def deploy(self, server, state, shared, updates):
        return Deployment({"denying": shared}, state)


@dataclass(frozen=True)
class Overwriting(ServerMethod):
    name: ClassVar[str] = "overwriting"

    def deploy(self, server, state, shared, updates):
        return Deployment({"overwriting": shared}, state, {"loss": 0.5})


def function():
    return None
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a module of methods, which is forgotten again."""
    (tmp_path / "my_methods.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for registry in (METHODS, VARIANTS, SERVER_METHODS):
        for name in registry:
            monkeypatch.setitem(registry, name, registry[name])  # type: ignore[attr-defined]
    known = [(registry, set(registry)) for registry in (METHODS, VARIANTS, SERVER_METHODS)]
    yield tmp_path
    sys.modules.pop("my_methods", None)
    for registry, names in known:
        for name in set(registry) - names:
            del registry[name]  # type: ignore[attr-defined]


def test_it_composes_and_its_settings_are_settings() -> None:
    mine = parse({"method": "fedbn+my_methods:Halved", "model": "mlp-bn", "halved.share": 0.25})
    assert [variant.name for variant in mine.variants] == ["halved", "local-batch-norm"]
    assert mine.flat()["halved.share"] == 0.25 and "fedbn+my_methods.Halved" in mine.run_id
    assert mine.run_id == parse({**mine.flat(), "method": "my_methods:Halved+fedbn"}).run_id
    with pytest.raises(SettingError) as refused:
        parse({"method": "my_methods:Halved", "halved.share": "x"})
    assert refused.value.key == "halved.share"


def test_flower_takes_its_settings_in_the_one_key_that_there_is() -> None:
    mine = parse({"method": "my_methods:Halved", "halved.share": 0.25})
    config = mine.run_config()
    assert "halved.share" not in config
    assert json.loads(str(config["method-settings"])) == {"halved.share": 0.25}
    assert parse(config).run_id == mine.run_id


def test_a_part_called_as_a_setting_takes_no_setting_with_it() -> None:
    mine = parse({"method": "my_methods:Momentum", "momentum": 0.3, "momentum.share": 0.25})
    config = mine.run_config()
    assert config["momentum"] == 0.3
    assert json.loads(str(config["method-settings"])) == {"momentum.share": 0.25}
    assert parse(config).run_id == mine.run_id


def test_an_object_of_it_is_taken_in_a_flower_app(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a process that has not loaded the class by its name, beside that name, and a second time."""
    monkeypatch.syspath_prepend(folder)
    mine = importlib.import_module("my_methods")
    halved = mine.Halved(share=0.25)
    for variants in ([halved], ["my_methods:Halved", halved], [halved]):
        assert variants_of(variants) == [halved]
    with pytest.raises(SettingError):
        variants_of([mine.Nameless()])


def test_clients_load_it_and_sites_do_not() -> None:
    mine = parse({"method": "my_methods:Halved", "halved.share": 0.25}).run_spec()
    text = mine.to_json()
    assert RunSpec.from_json(text) == mine
    del sys.modules["my_methods"]
    with pytest.raises(KeyError):
        RunSpec.from_json(text, modules=())
    assert "my_methods" not in sys.modules


def test_the_folder_comes_last_and_may_be_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "data.py").write_text("raise SystemExit")
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv(FOLDER, str(folder))
    assert fedskew.check_method("my_methods:Halved").source and sys.path[-1] == str(folder)


def test_a_check_prints_that_a_method_passes(capsys: pytest.CaptureFixture[str]) -> None:
    """A method that passes has no other sign of it; one that fails raises and prints nothing."""
    assert fedskew.check_method("my_methods:Halved").name == "my_methods:Halved"
    assert "my_methods:Halved keeps the contract of methods" in capsys.readouterr().out
    assert fedskew.check_method("my_methods:Stating").variants == ("stating",)
    capsys.readouterr()
    with pytest.raises(SettingError):
        fedskew.check_method("fedbm")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("function", "must be a class or a Method"),
        ("Method", "must be a Variant or a ServerMethod of fedskew.methods"),
        ("Bare", "Bare must be a @dataclass(frozen=True)"),
        ("Nameless", "Nameless.name must be words like my-part"),
        ("Taken", "Taken.name is proximal, and there is such a part already"),
        ("Listing", "Listing.shares must have a default that is a number, text, or true or false"),
        ("Idle", "Idle must fill combine or deploy, and fills none"),
        ("Largest", "there is no part counting: name its class in parts"),
    ],
)
def test_what_can_be_no_part_is_refused_when_it_is_loaded(name: str, reason: str) -> None:
    with pytest.raises(SettingError) as caught:
        parse({"method": f"my_methods:{name}"})
    assert str(caught.value).startswith(
        f"method = 'my_methods:{name}': breaks the contract of methods: "
    )
    assert reason in str(caught.value) and f"my_methods:{name}" not in METHODS


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Counting", "upload 'counting' is not one that fedavg takes"),
        ("Dividing", "((6, 0, 3, 1), (1, 2, 0, 4)) samples of the classes: ZeroDivisionError"),
        (
            "Understating",
            "client 0: sizes is int64 of 4, not int64 of 3",
        ),
        ("Readying", "asks readiness, which is a question of the server's own"),
        ("Rolling", "gives other numbers when it is repeated: draw from client.generator"),
        ("Spoiling", "changes what the client gives it"),
        ("Zeroing", "changes what the server gives it"),
        ("Infinite", "that is not finite"),
        ("Shrunk", "makes another model"),
        ("Watching", "deploys no model: state adds_model = False"),
        ("Denying", "deploys a model: state adds_model = True"),
        ("Overwriting", "records loss, which the record of every round has"),
    ],
)
def test_what_breaks_the_contract_is_refused_with_the_reason(name: str, reason: str) -> None:
    method = f"my_methods:{name}"
    assert parse({"method": method}), "the parser trains nothing"
    with pytest.raises(SettingError) as caught:
        check_new_methods(method)
    assert caught.value.key == "method" and reason in str(caught.value)


def test_a_run_begins_with_the_contract(folder: Path) -> None:
    """Not with a run of two methods, either, of which one keeps it."""
    settings = {"rounds": 1, "train-images": 60, "test-images": 40, "clients": 2, "model": "mlp-bn"}
    with pytest.raises(SettingError):
        fedskew.run({**settings, "method": "fedprox+my_methods:Spoiling"})
    assert not (folder / "results").exists()
    assert fedskew.run({**settings, "method": "fedprox+my_methods:Halved"}).finished


def test_any_file_of_a_package_is_part_of_its_source(folder: Path) -> None:
    package = folder / "my_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "parts.py").write_text(MODULE)
    (package / "notes.py").write_text("")
    before = parse({"method": "my_package.parts:Halved"}).run_id
    for name in ("my_package.parts:Halved", "my_package.parts", "my_package"):
        METHODS.pop(name, None)
        sys.modules.pop(name, None)
    (package / "notes.py").write_text("# changed\n")
    assert parse({"method": "my_package.parts:Halved"}).run_id != before


def test_another_source_is_another_run_and_is_checked_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []

    def note(method: Method) -> None:
        checked.append(method.name)

    monkeypatch.setattr(method_checks, "check", note)
    monkeypatch.setattr(plugins, "_passed", [])
    before = parse({"method": "my_methods:Halved"}).run_id
    for _ in range(2):
        check_new_methods("fedbn+my_methods:Halved")
    assert len(checked) == 1
    fedskew.check_method("my_methods:Halved")
    assert len(checked) == 2, "asked for, it is checked anyway"
    del METHODS["my_methods:Halved"], sys.modules["my_methods"]
    (folder / "my_methods.py").write_text(MODULE + "# changed\n")
    check_new_methods("my_methods:Halved")
    assert len(checked) == 3 and parse({"method": "my_methods:Halved"}).run_id != before
