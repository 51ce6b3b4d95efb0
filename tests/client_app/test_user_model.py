"""A user's own model by MODULE:FUNCTION, and one sentence for everything that is wrong with it."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from client_app.models import Classifier, build
from client_app.user_code import file_hash
from data import SettingError
from server_app.run_settings import RunSettings
from server_app.settings import parse

MODULE = """
from torch import nn
from client_app.models import Classifier

def good(shape, classes):
    return Classifier(nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], 5)), nn.Linear(5, classes))

def bare(shape, classes):
    return nn.Linear(4, classes)

def biasless(shape, classes):
    return Classifier(nn.Flatten(), nn.Linear(64, classes, bias=False))

def three_classes(shape, classes):
    return Classifier(nn.Flatten(), nn.Linear(64, 3))

def narrow(shape, classes):
    return Classifier(nn.Flatten(), nn.Linear(63, classes))

def grey(shape, classes):
    return Classifier(nn.Conv2d(2, 1, 3), nn.Linear(64, classes))

class Cosine(nn.Linear):
    def forward(self, features):
        return super().forward(nn.functional.normalize(features))

class Scaling(Classifier):
    def forward(self, inputs):
        return 3 * super().forward(inputs)

def cosine(shape, classes):
    return Classifier(nn.Flatten(), Cosine(64, classes))

def normed(shape, classes):
    head = nn.utils.parametrizations.weight_norm(nn.Linear(64, classes))
    return Classifier(nn.Flatten(), head)

def scaling(shape, classes):
    return Scaling(nn.Flatten(), nn.Linear(64, classes))

def headless(shape, classes):
    return Classifier(nn.Flatten(), nn.Identity())

def failing(shape, classes):
    raise RuntimeError("no idea")

number = 3
"""


@pytest.fixture(autouse=True)
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_models.py").write_text(MODULE)
    (tmp_path / "own_broken.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_it_is_built_from_the_seed_and_runs() -> None:
    first, same = (build("own_models:good", (1, 8, 8), 10, 3) for _ in range(2))
    assert isinstance(first, Classifier) and first.training
    assert torch.equal(first.head.weight, same.head.weight)
    settings = parse({"model": "own_models:good", "method": "fedavg"})
    assert settings.general.model == "own_models:good"
    assert settings.run_id != parse({"method": "fedavg"}).run_id


def test_another_file_is_another_run_but_not_while_one_goes_on(tmp_path: Path) -> None:
    def settings() -> RunSettings:
        return parse({"model": "own_changing:good", "method": "fedavg"})

    (tmp_path / "own_changing.py").write_text(MODULE)
    first = settings()
    before = first.run_id
    assert settings().run_id == before
    (tmp_path / "own_changing.py").write_text(MODULE + "# changed\n")
    assert settings().run_id != before
    assert replace(first).run_id != before == first.run_id


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("own_models:", "must be MODULE:FUNCTION"),
        (":good", "must be MODULE:FUNCTION"),
        ("own_nowhere:good", "own_nowhere cannot be imported: No module named 'own_nowhere'"),
        ("own_broken:good", "own_broken cannot be imported: No module named 'not_there_at_all'"),
        ("own_models:better", "own_models has no function better"),
        ("own_models:number", "own_models has no function number"),
        ("own_models:failing", "failed for shape (1, 8, 8) and 10 classes: RuntimeError: no idea"),
        ("own_models:bare", "must return a client_app.models.Classifier, not Linear"),
        ("own_models:headless", "its head must be a torch.nn.Linear"),
        ("own_models:biasless", "its head must have a bias"),
        ("own_models:three_classes", "its head has 3 outputs, not 10"),
        (
            "own_models:narrow",
            "its features have shape (2, 64) for 2 inputs, not (2, 63) as its head takes",
        ),
        ("own_models:cosine", "its head makes other logits than nn.Linear does"),
        ("own_models:normed", "its head has bias, parametrizations.weight.original0,"),
        ("own_models:scaling", "it must return its head's logits"),
        ("own_models:grey", "cannot take inputs of 1x8x8: "),
    ],
)
def test_what_is_wrong_with_it_is_one_sentence(name: str, rule: str) -> None:
    with pytest.raises(SettingError, match="^" + re.escape(f"model = {name!r}: {rule}")):
        build(name, (1, 8, 8), 10, 0)


def test_a_module_that_means_another_data_is_told_whose_it_is(tmp_path: Path) -> None:
    (tmp_path / "own_confused.py").write_text("from data import scans_of_mine\n")
    sentence = "; data is FedSkew's own package here: give your module another name"
    with pytest.raises(SettingError, match=f"cannot import name 'scans_of_mine' .*{sentence}"):
        build("own_confused:good", (1, 8, 8), 10, 0)


def test_a_module_that_is_not_there_has_no_hash() -> None:
    assert file_hash("no_such_module_of_mine:model") == ""
    assert len(file_hash("json:loads")) == 64
