"""One federation for all slow tests: SuperLink, gateway and three sites, which start once in a session.

A file whose tests use it says `pytestmark = RUNNING_FEDERATION`, and its tests take the fixture `federation`, which
conftest.py names. Each run needs a folder of results of its own. Who changes something, such as a site's files,
federation.toml or what is at work, puts it back: the next test begins with what this one leaves.

The sites share digits. They agree on a backbone and on a module by hash, mask their sums, take signed runs alone, and
let a model, scores, class counts and class statistics leave.
"""

import gc
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from agreed_module import added_methods_forgotten, source_of

if TYPE_CHECKING:
    from deploy.local_federation import LocalFederation

RUNNING_FEDERATION = [
    pytest.mark.slow,
    # The coordinator's commands run in this process, and leave their connections to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""Marks of a file whose tests use the federation. conftest.py names the file, so that one process runs them all."""
SITES = ("site-0", "site-1", "site-2")
TRAINED = ["model=mlp-bn", "learning-rate=0.1", "node-wait=60"]
"""Settings of a run that trains in a second a round."""
BACKBONE = "torchvision:shufflenet_v2_x0_5"
WEIGHTS = "own.safetensors"
"""The agreed file of the backbone's weights, in each site's folder and in the coordinator's."""
MODULE = "agreed"
"""The agreed module: agreed.py beside federation.toml, own_parts.py in each site's folder."""
POLICY = """
[policy]
allow = ["model", "scores", "class-counts", "class-statistics", "column-sums"]
"""


def write_weights(file: Path, seed: int) -> str:
    """Write weights of the backbone, drawn with a seed, and return their sha256."""
    import torch
    from safetensors.torch import save_file
    from torchvision import models

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        save_file(models.shufflenet_v2_x0_5(weights=None).state_dict(), file)
    return hashlib.sha256(file.read_bytes()).hexdigest()


def founded(work: Path) -> "LocalFederation":
    """Return a federation of three sites with their files; nothing of it is at work yet."""
    from deploy.local_federation import LocalFederation

    source = source_of(MODULE)
    keys = f'weights = "{WEIGHTS}"\nmodule = "own_parts.py"\n'
    federation = LocalFederation(work, POLICY, keys)
    federation.split("digits", len(SITES), "train-images=300")
    sha256 = write_weights(federation.sites / WEIGHTS, seed=99)
    for place in federation.places.values():
        (place / WEIGHTS).write_bytes((federation.sites / WEIGHTS).read_bytes())
        (place / "own_parts.py").write_text(source)

    def agree(text: str) -> str:
        code = hashlib.sha256(source.encode()).hexdigest()
        module = f'\n[module]\nname = "{MODULE}"\nsha256 = "{code}"\n'
        return f'backbone = "{BACKBONE}"\nweights = "{sha256}"\n{text}{module}'

    federation.found(agree=agree)
    for folder in (federation.folder, federation.sites):  # the second is copied for rehearsals
        (folder / f"{MODULE}.py").write_text(source)
    return federation


@pytest.fixture(scope="session")
def federation_of_the_session(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator["LocalFederation"]:
    """Start the federation, and end its processes, by their ids, with the session."""
    work = tmp_path_factory.mktemp("federation")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(work))
        federation = founded(work)
        with federation.at_work():
            yield federation
    gc.collect()


@pytest.fixture
def federation(
    federation_of_the_session: "LocalFederation", monkeypatch: pytest.MonkeyPatch
) -> Iterator["LocalFederation"]:
    """The federation, with all sites online and the text that was agreed first."""
    started = federation_of_the_session
    monkeypatch.setenv("HOME", str(started.work))
    agreed = (started.folder / "federation.toml").read_text()
    started.wait_for_sites()
    with added_methods_forgotten():
        yield started
    gc.collect()  # closes connections while the test's filters of warnings are in force
    assert (started.folder / "federation.toml").read_text() == agreed, "a test puts it back"


def rehearsed(
    federation: "LocalFederation", words: list[str], results: str, sums: str = "masked"
) -> Any:
    """Return the hash of a run's rehearsal, on copies of the sites' folders without their state."""

    def with_sums(text: str) -> str:
        return f'sums = "{sums}"\n{text}'

    copies = federation.copied_sites(f"{results}-sites", with_sums)
    return federation.rehearse(words, results, copies)["hash"]
