"""Runs whose clients have models of their own: what is shared, measured and refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from in_process import FinishedRun, kill

from data import SettingError
from server_app.record import Spread
from server_app.settings import parse

Train = Callable[..., FinishedRun]
SKEWED: dict[str, Any] = {"alpha": 0.1, "clients": 5, "rounds": 4, "train-images": 400}


def local_accuracy(run: FinishedRun, model: str = "average") -> Spread:
    """Return a model's accuracy on the clients' own class distributions, after the last round."""
    return run.folder.rounds()[-1].models[model].spreads["local-accuracy"]


@pytest.mark.parametrize("method", ["creff", "creff-code", "tau-norm"])
def test_a_method_about_the_shared_head_is_refused_beside_fedper(method: str) -> None:
    with pytest.raises(SettingError) as refused:
        parse({"method": f"fedper+{method}"})
    assert refused.value.key == "method"
    assert "needs a shared head, and local-head keeps one on each client" in refused.value.rule
    assert parse({"method": f"fedbn+{method}", "model": "mlp-bn"}).parts.deploys


def test_features_that_do_not_train_leave_nothing_to_share() -> None:
    with pytest.raises(SettingError, match="none but the head trains") as refused:
        parse({"method": "fedper", "model": "linear"})
    assert refused.value.key == "model"
    assert parse({"method": "fedper", "model": "mlp-bn"}).general.model == "mlp-bn"


def test_a_new_site_has_no_head() -> None:
    scanners = {"dataset": "digits-scanners", "unseen-domain": "digits-noisy"}
    with pytest.raises(SettingError, match="leaves a new site without a head"):
        parse({**scanners, "method": "fedper"})
    assert parse({**scanners, "method": "fedbn"}).data.unseen_domain == "digits-noisy"


def test_own_heads_know_their_clients_classes(train: Train) -> None:
    """Under label skew a client's own head is above the mean of all heads, at the worst client too."""
    own = local_accuracy(train("own", method="fedper", **SKEWED))
    shared = local_accuracy(train("shared", method="fedavg", **SKEWED))
    assert own.mean > shared.mean
    assert own.worst > shared.worst


def test_a_killed_run_of_fedper_goes_on_to_the_same_hash(train: Train, tmp_path: Path) -> None:
    changes = {"method": "fedper", "rounds": 4, "participation": 0.75}
    whole = train("whole", **changes)
    kill(tmp_path / "killed", "after the checkpoint", changes)
    resumed = train("killed", **changes)
    assert any("resuming after round" in line for line in resumed.lines)
    assert resumed.summary["hash"] == whole.summary["hash"]
