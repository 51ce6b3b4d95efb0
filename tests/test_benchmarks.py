"""The suite of benchmarks: what it names is there, its rows become tables, and its numbers are computed right."""

import importlib.util
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import race_scores
from benchmarks.__main__ import SUITE, table, write
from benchmarks.figures import figure, seconds
from benchmarks.peers.cifar_cnn import cifar_cnn
from benchmarks.peers.networks import CLASSES, build
from benchmarks.peers.work import WORKS, images, save
from client_app.models import build as build_model
from fedskew.method_selection.targets import TARGETS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "results" / "performance.md"


def test_every_benchmark_is_there_and_has_its_place() -> None:
    text = PAGE.read_text()
    for name, module in SUITE.items():
        spec = importlib.util.find_spec(module)
        assert spec and spec.origin and "\ndef rows(" in Path(spec.origin).read_text(), module
        assert f"<!-- {name} -->\n" in text and f"<!-- end of {name} -->" in text, name
    for work in WORKS:
        assert (
            f"<!-- peers {work} -->\n**{work}**" in text and f"<!-- end of peers {work} -->" in text
        )


def test_rows_become_a_table_between_their_marks(tmp_path: Path) -> None:
    rows = [
        figure("ours / theirs", [2.0, 3.0, 9.0], [2.0, 2.0, 3.0], goal=1.2),
        seconds("ours", [2.0, 3.0, 9.0], goal=4.0),
        seconds("theirs", [2.0, 2.0, 3.0]),
    ]
    file = tmp_path / "text.md"
    file.write_text("before\n<!-- a -->\nold\n<!-- end of a -->\nafter\n")
    write(file, "a", table(rows))
    text = file.read_text()
    assert "| ours / theirs | 1.5 | 1.0 to 3.0 of 3 | 1.2 |\n\nSeconds: " in text
    assert "Seconds: ours 3.0 (goal 4.0); theirs 2.0.\n<!-- end of a -->\nafter\n" in text
    assert text.startswith("before\n<!-- a -->\n|") and "old" not in text


def test_a_work_of_the_peers_is_the_same_for_every_tool(tmp_path: Path) -> None:
    work = replace(WORKS["tiny"], clients=4)
    first, again = images(work), images(work)
    assert np.array_equal(first.train_MNCHW, again.train_MNCHW)
    assert np.bincount(first.train_labels_MN.ravel()).tolist() == [8] * 10
    save(work, tmp_path / "images.npz")
    saved = np.load(tmp_path / "images.npz")
    assert np.array_equal(saved["train_images"][25, :, :, 0], first.train_MNCHW[1, 5, 0])


def test_fedskew_s_networks_of_the_peers_are_the_others() -> None:
    """FedSkew pools before it cuts at zero; the values are the same."""
    for work in WORKS.values():
        plain = build(work.model)
        own = cifar_cnn if work.model == "cifar-cnn" else partial(build_model, work.model, seed=0)
        ours = own(work.shape, CLASSES)
        with torch.no_grad():
            for our_tensor, tensor in zip(ours.parameters(), plain.parameters(), strict=True):
                our_tensor.copy_(tensor)
        inputs = torch.rand(3, *work.shape)
        assert torch.allclose(ours(inputs), plain(inputs), atol=1e-6), work.model


def test_what_a_choice_loses_follows_from_the_scores_at_the_federation_s_own_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_seed(*scores: float) -> dict[str, dict[str, float]]:
        return {str(seed): dict.fromkeys(TARGETS, score) for seed, score in enumerate(scores)}

    # By name the own rate is the second; ccvr at 0.01 is the best of seed 0, and diverges in one of the others.
    scores = {
        "fedavg": {"0.05": by_seed(50, 52, 54), "0.01": by_seed(60, 60, 60)},
        "ccvr": {"0.05": by_seed(70, 71, 75), "0.01": by_seed(99, 99, math.nan)},
        "scaffold+ccvr": {"0.05": by_seed(80, 62, 62), "0.01": by_seed(64, 75, 74)},
    }
    taken = {"method": "ccvr", "learning_rate": 0.05}
    end = {"commit": "0", "take": {**taken, "method": "fedavg"}, "winner": taken}
    monkeypatch.setattr(race_scores, "FOLDER", tmp_path)
    full = {"commits": ["0"], "own-rate": "0.05", "scores": scores}
    races = {"1": {"accuracy": end}}
    race_scores.write("iid", {"full": full, "races": races, "seconds": {"1": {"accuracy": 72.0}}})

    of_all = race_scores.full_scores("iid", "accuracy")
    assert of_all.best == pytest.approx(72) and ("ccvr", "0.01") not in of_all.scores
    assert of_all.at_own_rate("fedavg") == 52 and of_all.tuned("fedavg") == 60
    # The best by the other seeds is scaffold+ccvr (0.01), then ccvr (0.05), then scaffold+ccvr (0.05).
    assert of_all.best_of_other_seeds == pytest.approx((64 + 71 + 62) / 3)
    assert of_all.taken(end, "take") == 52 and of_all.taken(end, "winner") == of_all.best
    gain = race_scores.gain_of("ccvr", ["iid"], "accuracy")
    # Gains of 20, 19 and 21: deviation 1, and Student's quantile with two degrees of freedom.
    assert gain.mean == pytest.approx(20)
    assert gain.half == pytest.approx(4.3027 / math.sqrt(3), abs=1e-3)
