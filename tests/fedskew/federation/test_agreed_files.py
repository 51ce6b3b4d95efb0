"""A backbone and a module that are agreed by hash, with real SuperLink, gateway and sites."""

import gc
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "deploy"))

from local_federation import LocalFederation, fedskew, settings

from client_app import user_code
from client_app.models.backbone import sha256_of
from client_app.variants import VARIANTS
from fedskew.federation.status import READY, REFUSES
from server_app.methods import METHODS
from strategies.registry import SERVER_METHODS

BACKBONE = "torchvision:shufflenet_v2_x0_5"
POLICY = """
[policy]
allow = ["model", "scores", "class-counts", "class-statistics"]
methods = ["balanced-statistics", "label-counts", "agreed_parts:Sizes"]
models = ["random-conv", "torchvision:shufflenet_v2_x0_5", "agreed_parts:small"]
"""
MODULE = """
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedskew.methods import Classifier, Contribution, Method, ServerMethod, Upload, Variant


def small(shape, classes):
    return Classifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh()), nn.Linear(8, classes))


@dataclass(frozen=True)
class Sizes(Variant):
    name: ClassVar[str] = "agreed-sizes"

    def after(self, client, trained):
        return Contribution(upload={"counts": client.counts_C})

    @property
    def upload(self):
        return Upload("class-counts", lambda model, classes_held: 8 * model.head.out_features)


@dataclass(frozen=True)
class Mixed(ServerMethod):
    name: ClassVar[str] = "agreed-mixed"
    consumes: ClassVar[str] = "agreed-sizes"
    share: float = 0.5

    def accepts(self, server, upload):
        assert upload["counts"].shape == (server.model.head.out_features,)

    def combine(self, server, state, updates):
        largest = max(updates, key=lambda update: float(update.uploads["agreed-sizes"]["counts"].max()))
        mixed = dict(largest.shared)
        for name in server.parameters:
            before = server.start[name]
            mixed[name] = before + self.share * (mixed[name] - before)
        return mixed, {}


PAIR = Method("pair", "half a step to the client of the largest class", "made up", "class counts",
              ("agreed-sizes",), "agreed-mixed", parts=(Sizes, Mixed))
"""


@pytest.fixture(autouse=True)
def forget_modules() -> Iterator[None]:
    registries: list[Any] = [METHODS, VARIANTS, SERVER_METHODS, user_code._agreed]
    names = [set(registry) for registry in registries]
    yield
    for registry, before in zip(registries, names, strict=True):
        for added in set(registry) - before:
            del registry[added]
    gc.collect()  # closes connections while the test's filters of warnings are in force


@pytest.fixture
def weights(tmp_path: Path) -> tuple[Path, Path]:
    """Two files of the backbone's weights, of different seeds."""
    from torchvision import models

    files = []
    for seed in (99, 100):
        torch.manual_seed(seed)
        files.append(tmp_path / f"{seed}.safetensors")
        save_file(models.shufflenet_v2_x0_5(weights=None).state_dict(), files[-1])
    return files[0], files[1]


def states(federation: LocalFederation, words: list[str]) -> dict[str, str]:
    """Return each site's state for a planned run.

    For a moment after its summary the run before is unfinished to the SuperLink, and its records would answer.
    """
    for _ in range(600):
        answer = fedskew("federation", "status", federation.folder, "--json", *settings(words))
        status = json.loads(answer)
        if status["basis"].startswith("asked for"):
            return {name: site["state"] for name, site in status["sites"].items()}
        time.sleep(1)
    raise TimeoutError(status["basis"])


def change_at_one_site(federation: LocalFederation, name: str, other_weights: Path) -> None:
    """Give a site other weights and another module than it has approved, and start it again."""
    place = federation.places[name]
    federation.stop(name)
    (place / "own.safetensors").write_bytes(other_weights.read_bytes())
    with (place / "own_parts.py").open("a") as module:
        module.write("import os\nos.mkdir('ran')\n")
    federation.start(name)
    federation.wait_for_sites()


@pytest.mark.slow
# The coordinator's commands run in this process, and leave their connections to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_backbones_and_own_code_by_hash(tmp_path: Path, weights: tuple[Path, Path]) -> None:
    keys = 'weights = "own.safetensors"\nmodule = "own_parts.py"\n'
    federation = LocalFederation(tmp_path / "federation", POLICY, keys)
    federation.split("digits", 3)
    for folder in federation.places.values():
        (folder / "own.safetensors").write_bytes(weights[0].read_bytes())
        (folder / "own_parts.py").write_text(MODULE)

    def agree(text: str) -> str:
        code = hashlib.sha256(MODULE.encode()).hexdigest()
        backbone = f'backbone = "{BACKBONE}"\nweights = "{sha256_of(str(weights[0]))}"\n'
        return f'{backbone}{text}\n[module]\nname = "agreed_parts"\nsha256 = "{code}"\n'

    federation.found(agree=agree)
    for folder in (federation.folder, federation.sites):  # the second is the rehearsal's
        (folder / "agreed_parts.py").write_text(MODULE)
    heads = ["method=fed-lda", "rounds=0"]
    backbone = [*heads, f"model={BACKBONE}", f"weights={weights[0]}", "freeze=all", "image-side=16"]
    runs = {
        "no file": [*heads, "model=random-conv"],
        "a file of weights": backbone,
        "own code": ["method=agreed_parts:PAIR", "agreed-mixed.share=0.25", "model=agreed_parts:small", "rounds=2"],
    }  # fmt: skip
    with federation.at_work():
        trained = {name: federation.run(run) for name, run in runs.items()}
        assert {*states(federation, backbone).values()} == {READY}
        changed = [*federation.places][1]
        change_at_one_site(federation, changed, weights[1])
        for name in ("a file of weights", "own code"):
            answers = states(federation, runs[name])
            assert answers.pop(changed) == REFUSES
            assert {*answers.values()} == {READY}
        # The control: what needs no file of its own is as before at the same site.
        assert {*states(federation, runs["no file"]).values()} == {READY}
    log = (federation.places[changed] / "state/site.log").read_text()
    agreed_hashes = (sha256_of(str(weights[0])), hashlib.sha256(MODULE.encode()).hexdigest())
    for code in (sha256_of(str(weights[1])), *agreed_hashes):
        assert code in log
    assert not (federation.places[changed] / "ran").exists()

    copies = federation.copied_sites("copies")
    (copies / changed / "own.safetensors").write_bytes(weights[0].read_bytes())
    (copies / changed / "own_parts.py").write_text(MODULE)
    for name, run in runs.items():
        rehearsed = federation.rehearse(run, "rehearsal", copies)
        assert rehearsed["hash"] == trained[name]["hash"], name
