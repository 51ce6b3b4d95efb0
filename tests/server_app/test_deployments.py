"""Several models from one training, and the question after the last round."""

from collections.abc import Callable
from pathlib import Path

import pytest
from in_process import FinishedRun, TamperingGrid, small

from client_app.messages import unpack
from client_app.state import digest
from data import federate
from server_app.checkpoint import Checkpoint

Train = Callable[..., FinishedRun]
ALL = "creff+creff-code+ccvr+tau-norm+real-features"


def deployed(outcome: FinishedRun) -> dict[str, str]:
    """Return the hash of every deployed model after the last round."""
    checkpoint = Checkpoint.load(outcome.folder.checkpoint_file)
    return {name: digest([state]) for name, state in checkpoint.deployed.items()}


def test_deployments_do_not_see_each_other(train: Train) -> None:
    """Every model is the one that its method deploys alone, and the average is the other method's, to the bit."""
    settings = {"holdout_per_class": 3, "participation": 0.75}
    together = train("together", method=f"{ALL}+feddf", **settings)
    plain = train("plain", method="feddf", **settings)
    models = deployed(together)
    of_rounds = ("creff", "creff-code", "tau-norm", "real-features")
    assert list(models) == ["average", *of_rounds, "ccvr"]
    assert len(set(models.values())) == len(models)
    assert together.summary["rows"]["average"] == "feddf"
    assert together.summary["hash"]["shared"] == plain.summary["hash"]["shared"]
    for name in ALL.split("+"):
        alone = train(name, method=f"{name}+feddf", **settings)
        assert deployed(alone) == {"average": models["average"], name: models[name]}


@pytest.mark.parametrize(
    ("method", "setting"),
    [("ccvr", "features_per_class"), ("real-features", "head_steps")],
)
def test_identity_settings_deploy_the_average(train: Train, method: str, setting: str) -> None:
    own = method.replace("-", "_")
    models = deployed(train(method=method, rounds=1, **{f"{own}__{setting}": 0}))
    assert models[method] == models["average"]


# ---- the question after the last round -------------------------------------------------------------------------------


def test_the_final_question_is_asked_once_and_of_everybody(train: Train, tmp_path: Path) -> None:
    changes = {"participation": 0.5, "evaluate_every": 0}
    outcome = train(grid=(grid := TamperingGrid()), method="ccvr", **changes)
    assert grid.kinds() == ["train", "train", "query"]
    assert list(grid.asked[-1].content["task"]["clients"]) == [0, 1, 2, 3]
    asked = unpack(grid.asked[-1].content.array_records["model"])
    assert digest([asked]) == deployed(outcome)["average"], "the final weights"
    plain = train("plain", **changes)
    held = int((federate(small(tmp_path).data, 0).counts_KC > 0).sum())
    width = asked["head.weight"].shape[1]
    sent = [record["bytes-up"] for record in outcome.records]
    before = [record["bytes-up"] for record in plain.records]
    assert sent == [before[0], before[1] + 8 * held * (2 + width + width**2)]
