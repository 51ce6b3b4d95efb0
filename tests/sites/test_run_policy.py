"""What a coordinator with the approved code may set: images that tiny batches give away, and the policy against it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asked_site import answer, shared_of

from client_app.messages import unpack
from client_app.runtime import site_runtime
from client_app.state import State
from data import SettingError
from fedskew.engines import Resources, execute
from server_app.run_folder import RunFolder
from server_app.run_settings import RunSettings
from server_app.settings import parse
from site_agent import check
from site_agent.config import read_site
from site_agent.data_view import install
from site_agent.policy import MOST_MODELS, SPARE_EVALUATIONS
from site_agent.run_approval import approve, hash_of
from strategies.core.exchange import EVALUATE, QUERY, TRAIN
from tests.site_files import site_entries, site_folders, write

HONEST: dict[str, Any] = {"method": "fedavg", "model": "mlp-bn", "rounds": 2, "batch-size": 8}
ATTACK: dict[str, Any] = {**HONEST, "batch-size": 1, "local-steps": 1, "norm": "group"}
OPEN: dict[str, Any] = {"min-batch-size": 1, "min-steps": 1, "min-update-samples": 1}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield site_folders(tmp_path / "sites")
    install({})
    site_runtime.cache_clear()


def settings_of(folder: Path, **settings: Any) -> RunSettings:
    return parse({**settings, "dataset": f"sites:{folder}/federation.toml"})


def ask(
    folder: Path,
    chosen: RunSettings,
    policy: dict[str, Any] | None = None,
    kind: str = TRAIN,
    shift: float = 0.0,
) -> tuple[State, State, str]:
    """Ask the site north; return the model that was sent, the one that came back, and the error if there is one.

    `shift` is added to the weights that are sent: another question for the same round.
    """
    install({0: read_site(write(folder / "north/site.toml", site_entries(policy=policy)))})
    sent = {name: tensor + shift for name, tensor in shared_of(chosen).items()}
    content = answer(chosen, sent, kind)
    error = str(content["0/error"].get("reason", "")) if "0/error" in content else ""
    back = unpack(content.array_records["0/model"]) if "0/model" in content else {}
    return sent, back, error


def image_in(sent: State, back: State) -> torch.Tensor:
    """Return what the first layer's weights moved by over what its biases moved by, of the neuron that moved most."""
    weight, bias = "features.1.weight", "features.1.bias"
    moved_HI = (back[weight] - sent[weight]).double()
    moved_H = (back[bias] - sent[bias]).double()
    neuron = int(moved_H.abs().argmax())
    return moved_HI[neuron] / moved_H[neuron]


def nearest(folder: Path, image_I: torch.Tensor) -> float:
    """Return the largest difference from the nearest training image, each normalized as the agreement says."""
    pixels = np.load(folder / "north/data.npz")["train_images"].reshape(-1, 64) / 255.0
    images_NI = torch.from_numpy((pixels - 0.5) / 0.5)
    return float((images_NI - image_I).abs().amax(1).min())


# ---- the leak --------------------------------------------------------------------------------------------------------


def test_a_batch_of_one_gives_the_image_away_where_policy_allows_it(folder: Path) -> None:
    """The reason for min-batch-size: docs/explanation/security.md says that the coordinator reads images here."""
    sent, back, error = ask(folder, settings_of(folder, **ATTACK), OPEN)
    assert not error and nearest(folder, image_in(sent, back)) < 1e-6
    # A bound on the update's norm does not stop it.
    slow = settings_of(folder, **ATTACK, **{"learning-rate": 0.01})
    sent, back, error = ask(folder, slow, {**OPEN, "max-norm": 0.2})
    assert not error and nearest(folder, image_in(sent, back)) < 1e-2


def test_the_usual_policy_refuses_it_and_lets_an_honest_run_pass(folder: Path) -> None:
    sent, back, error = ask(folder, settings_of(folder, **ATTACK))
    assert not back and error.startswith("policy: min-batch-size ")
    sent, back, error = ask(folder, settings_of(folder, **{**ATTACK, "batch-size": 8}))
    assert not error and nearest(folder, image_in(sent, back)) > 0.05
    assert not ask(folder, settings_of(folder, **HONEST))[2]


# ---- rule by rule ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "settings", "key"),
    [
        ({"min-batch-size": 9}, {}, "min-batch-size"),
        ({"min-update-samples": 9}, {"batch-limit": 1}, "min-update-samples"),
        ({"methods": ["logit-shift"]}, {"method": "fedprox"}, "methods"),
        ({"max-rounds": 1}, {}, "max-rounds"),
    ],
)
def test_a_run_outside_the_policy_is_refused_at_readiness_and_at_training(
    folder: Path, policy: dict[str, Any], settings: dict[str, Any], key: str
) -> None:
    chosen = settings_of(folder, **{**HONEST, **settings})
    for kind in (QUERY, TRAIN):
        assert ask(folder, chosen, policy, kind)[2].startswith(f"policy: {key} ")
    assert not ask(folder, chosen)[2]


def test_one_round_answers_max_rounds_different_questions(folder: Path) -> None:
    """A coordinator that asks for round 1 again and again, each time with other weights; the same ones are free."""
    chosen = settings_of(folder, **HONEST)
    policy = {"max-rounds": 2}
    assert not ask(folder, chosen, policy)[2] and not ask(folder, chosen, policy)[2]
    assert not ask(folder, chosen, policy, shift=0.1)[2]
    assert ask(folder, chosen, policy, shift=0.2)[2].startswith("policy: max-rounds ")


def test_a_site_evaluates_a_set_of_models_per_round_and_few_more(folder: Path) -> None:
    """A coordinator that sends one crafted model after another; the same ones are free."""
    chosen = settings_of(folder, **HONEST)
    for number in (*range(HONEST["rounds"] + 1 + SPARE_EVALUATIONS), 0, 1):
        assert not ask(folder, chosen, kind=EVALUATE, shift=float(number))[2]
    refused = ask(folder, chosen, kind=EVALUATE, shift=0.5)[2]
    assert refused.startswith("policy: scores ")
    assert not ask(folder, chosen)[2]  # training has a count of its own


def test_a_site_evaluates_few_models_at_once_and_only_rounds_of_the_run(folder: Path) -> None:
    install({0: read_site(folder / "north/site.toml")})
    chosen = settings_of(folder, **HONEST)
    shared = shared_of(chosen)

    def refused(models: int, round: int) -> bool:
        states = {f"deployed/{number}": shared for number in range(models)}
        content = answer(chosen, shared, EVALUATE, fields={"round": round}, states=states)
        return "0/error" in content

    assert not refused(1, 2) and refused(1, 3) and refused(1, -1)
    assert not refused(MOST_MODELS, 0) and refused(MOST_MODELS + 1, 0)


def test_the_run_says_which_site_refuses_it_and_by_which_rule(folder: Path, tmp_path: Path) -> None:
    write(folder / "east/site.toml", site_entries(name="east", policy={"min-batch-size": 16}))
    said: list[str] = []
    for size, holds in ((8, False), (16, True)):
        chosen = parse(
            {
                **HONEST,
                "batch-size": size,
                "rounds": 1,
                "dataset": f"sites:{folder}/federation.toml",
                "results": str(tmp_path),
            }
        )
        try:
            execute(chosen, Resources("inprocess"), said.append, sites=str(folder))
        except SettingError as error:
            assert not holds
            assert "the policy of site east refuses the run: min-batch-size " in str(error)
        else:
            assert holds and RunFolder(chosen.folder).rounds()[0].clients == [0, 1, 2]
    assert f"settings that sites see: sha256 {hash_of(chosen.run_spec().to_json())}" in said


def test_a_policy_that_gives_images_away_is_warned_of_by_check(folder: Path) -> None:
    path = write(folder / "north/site.toml", site_entries(policy=OPEN))
    warned = str(check.row("policy", check.policy, read_site(path)))
    assert warned.startswith("(!)") and "can then read single images" in warned


# ---- approval of a run -----------------------------------------------------------------------------------------------


def test_a_run_takes_place_only_once_it_is_approved(folder: Path) -> None:
    chosen, policy = settings_of(folder, **HONEST), {"approve-runs": True}
    for kind in (QUERY, TRAIN):
        assert ask(folder, chosen, policy, kind)[2].startswith("policy: approve-runs ")
    site, code = read_site(folder / "north/site.toml"), hash_of(chosen.run_spec().to_json())
    approve(site, code)
    for kind in (QUERY, TRAIN):
        assert not ask(folder, chosen, policy, kind)[2]
    other = settings_of(folder, **{**HONEST, "batch-size": 12})
    assert ask(folder, other, policy)[2].startswith("policy: approve-runs ")
