"""A user's own model by MODULE:FUNCTION, and one sentence for everything that is wrong with it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from client_app.models import Classifier, build
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

class Dropping(Classifier):
    def forward(self, inputs):
        return self.head(nn.functional.dropout(self.features(inputs), training=self.training))

def cosine(shape, classes):
    return Classifier(nn.Flatten(), Cosine(64, classes))

def normed(shape, classes):
    head = nn.utils.parametrizations.weight_norm(nn.Linear(64, classes))
    return Classifier(nn.Flatten(), head)

def scaling(shape, classes):
    return Scaling(nn.Flatten(), nn.Linear(64, classes))

def dropping(shape, classes):
    return Dropping(nn.Flatten(), nn.Linear(64, classes))

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
    (tmp_path / "own_confused.py").write_text("from data import scans_of_mine\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_it_is_built_from_the_seed_and_runs() -> None:
    first, same = (build("own_models:good", (1, 8, 8), 10, 3) for _ in range(2))
    assert isinstance(first, Classifier) and first.training
    assert torch.equal(first.head.weight, same.head.weight)
    settings = parse({"model": "own_models:good", "method": "fedavg"})
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
    ("name", "said"),
    [
        ("own_models:", "MODULE:FUNCTION"),
        ("own_nowhere:good", "'own_nowhere'"),
        ("own_broken:good", "'not_there_at_all'"),
        ("own_confused:good", "data is FedSkew's own package"),
        ("own_models:better", "no function better"),
        ("own_models:number", "no function number"),
        ("own_models:failing", "RuntimeError: no idea"),
        ("own_models:bare", "not Linear"),
        ("own_models:headless", "not Identity()"),
        ("own_models:biasless", "bias=False"),
        (
            "own_models:three_classes",
            "a bias and 10 outputs, not Linear(in_features=64, out_features=3",
        ),
        ("own_models:narrow", "not (2, 63)"),
        ("own_models:cosine", "makes other logits"),
        ("own_models:normed", "weight.original0"),
        ("own_models:scaling", "its head's logits"),
        ("own_models:dropping", "Classifier's own forward"),
        ("own_models:grey", "inputs of 1x8x8"),
    ],
)
def test_what_is_wrong_with_it_is_one_sentence(name: str, said: str) -> None:
    with pytest.raises(SettingError) as caught:
        build(name, (1, 8, 8), 10, 0)
    assert (caught.value.key, caught.value.value) == ("model", name)
    assert said in str(caught.value) and "\n" not in str(caught.value)
