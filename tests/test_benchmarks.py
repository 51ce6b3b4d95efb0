"""The suite of benchmarks: what it names is there, and its rows become tables in their place."""

import importlib.util
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import benchmarks.peers.__main__ as peers
from benchmarks import race_scores
from benchmarks.__main__ import SUITE, table, write
from benchmarks.figures import figure, seconds
from benchmarks.peers.cifar_cnn import cifar_cnn
from benchmarks.peers.networks import CLASSES, build
from benchmarks.peers.work import WORKS, images, save
from benchmarks.race_replay import Beside, SharedRuns
from benchmarks.races import ENTRIES
from client_app.models import build as build_model
from fedskew.method_selection.candidates import Entrant, contenders_by_training, possible
from fedskew.method_selection.conduct import Runs
from fedskew.method_selection.targets import TARGETS
from server_app.run_folder import RunFolder
from server_app.run_settings import Scalar

ROOT = Path(__file__).resolve().parent.parent


def test_every_benchmark_is_there_and_has_its_place() -> None:
    text = (ROOT / "docs" / "results" / "performance.md").read_text()
    for name, module in SUITE.items():
        spec = importlib.util.find_spec(module)
        assert (
            spec is not None
            and spec.origin is not None
            and "\ndef rows(" in Path(spec.origin).read_text()
        ), module
        assert f"<!-- {name} -->\n" in text and f"<!-- end of {name} -->" in text, name


def test_every_work_of_the_peers_has_its_own_place_on_the_page() -> None:
    text = (ROOT / "docs" / "results" / "performance.md").read_text()
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
    assert rows[0] == {
        "name": "ours / theirs",
        "ratio": 1.5,
        "goal": 1.2,
        "least": 1.0,
        "most": 3.0,
        "measurements": 3,
    }
    file = tmp_path / "text.md"
    file.write_text("before\n<!-- a -->\nold\n<!-- end of a -->\nafter\n")
    write(file, "a", table(rows))
    text = file.read_text()
    assert "| ours / theirs | 1.5 | 1.0 to 3.0 of 3 | 1.2 |\n\nSeconds: " in text
    assert "Seconds: ours 3.0 (goal 4.0); theirs 2.0.\n<!-- end of a -->" in text
    assert file.read_text().startswith("before\n<!-- a -->\n|") and "old" not in file.read_text()


def test_a_work_of_the_peers_is_the_same_for_every_tool(tmp_path: Path) -> None:
    work = replace(WORKS["tiny"], clients=4)
    first, again = images(work), images(work)
    assert np.array_equal(first.train_MNCHW, again.train_MNCHW)
    assert first.train_MNCHW.shape == (4, 20, 1, 8, 8)
    assert np.bincount(first.train_labels_MN.ravel()).tolist() == [8] * 10
    save(work, tmp_path / "images.npz")
    saved = np.load(tmp_path / "images.npz")
    assert np.array_equal(saved["train_images"][25, :, :, 0], first.train_MNCHW[1, 5, 0])


def test_fedskew_s_networks_of_the_peers_are_the_others() -> None:
    """FedSkew pools before it cuts at zero; the values are the same."""
    for work in WORKS.values():
        plain = build(work.model)
        own = cifar_cnn if work.model == "cifar-cnn" else partial(build_model, work.model)
        ours = own(work.shape, CLASSES) if own is cifar_cnn else own(work.shape, CLASSES, 0)
        weights = zip(ours.parameters(), plain.parameters(), strict=True)
        with torch.no_grad():
            for our_tensor, tensor in weights:
                our_tensor.copy_(tensor)
        inputs = torch.rand(3, *work.shape)
        assert torch.allclose(ours(inputs), plain(inputs), atol=1e-6), work.model


def test_the_peers_table_says_who_is_slower_and_who_does_not_learn_alike() -> None:
    results = {
        peers.REFERENCE: peers.Measurement("1", [1.0, 2.0, 3.0], [5.0] * 3, [100.0] * 3, [0.5] * 3),
        peers.BARE: peers.Measurement("2", [2.0, 2.0, 9.0], [1.0] * 3, [50.0] * 3, [0.52] * 3),
        "FedJAX": peers.Measurement("3", [4.0, 8.0, 12.0], [1.0] * 3, [50.0] * 3, [0.9] * 3),
    }
    lines = "\n".join(peers.table("tiny", results, {"fluke": "it took too long"}))
    assert "| FedJAX 3 | 1 | 8 (4 to 12) | 4 (4 to 4) | 1 | 50 | 0.900, **not alike** |" in lines
    assert "| bare PyTorch loop 2 | 1 | 2 (2 to 9) | 2 (1 to 3) | 1 | 50 | 0.520 |" in lines
    assert "fluke is not in this table: it took too long." in lines


@pytest.mark.parametrize(("loss", "alike"), [(0.015, True), (0.03, False)])
def test_small_losses_are_compared_in_nats(loss: float, alike: bool) -> None:
    """Where all is learned, a difference of ten percent is noise."""
    results = {
        peers.BARE: peers.Measurement("2", [2.0], [1.0], [50.0], [0.006]),
        "fluke": peers.Measurement("3", [4.0], [1.0], [50.0], [loss]),
    }
    lines = "\n".join(peers.table("tiny", results, {}))
    assert ("not alike" not in lines) == alike


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
    race_scores.write("iid", {
        "full": {"commits": ["0"], "own-rate": "0.05", "scores": scores},
        "races": {"1": {"accuracy": end}},
        "seconds": {"1": {"accuracy": 72.0}},
    })  # fmt: skip

    full = race_scores.full_scores("iid", "accuracy")
    assert full.best == pytest.approx(72) and ("ccvr", "0.01") not in full.scores
    assert full.at_own_rate("fedavg") == 52 and full.tuned("fedavg") == 60
    assert full.any_method() == pytest.approx((52 + 72 + 68) / 3)
    # The best by the other seeds is scaffold+ccvr (0.01), then ccvr (0.05), then scaffold+ccvr (0.05).
    assert full.best_of_other_seeds == pytest.approx((64 + 71 + 62) / 3)
    assert full.taken(end, "take") == 52 and full.taken(end, "winner") == full.best

    gain = race_scores.gain_of("ccvr", ["iid"], "accuracy")
    assert gain.mean == pytest.approx(20)
    # Gains of 20, 19 and 21: deviation 1, and Student's quantile with two degrees of freedom.
    assert gain.half == pytest.approx(4.3027 / math.sqrt(3), abs=1e-3)
    tables = race_scores.report(["iid"])
    assert "| race of 1 min | - | 20.0 ± 0.0 |" in tables["all federations"]
    assert "| its winner, 1 min | - | 0.0 ± 0.0 |" in tables["all federations"]
    assert "| always fedavg | 20.0 ± 0.0 |" in tables["all federations"]
    assert "| 1 | 1 | 120 % | 120 % | 120 % |" in tables["minutes"]
    assert "| none | anything | ccvr +20.0 [+17.5, +22.5] |" in tables["first choices"]
    assert "| none | the model alone | fedavg |" in tables["first choices"]


def test_a_race_counts_the_recorded_seconds_of_runs_that_another_one_has_trained(
    tmp_path: Path,
) -> None:
    settings: dict[str, Scalar] = {
        "model": "mlp-bn",
        "train-images": 100,
        "rounds": 3,
        "local-epochs": 1,
        "min-samples": 5,
        "clients": 3,
        "results": str(tmp_path),
    }
    fedavg = [Entrant("fedavg", 0.05)]
    clocks = []
    for _ in range(2):
        contenders = contenders_by_training(possible(["ccvr"], settings), None)
        runs = Runs(
            contenders, settings, {"validation-fraction": 0.3}, "accuracy", Console(quiet=True), 1
        )
        # Nothing beside the runs is counted: what was trained in this race is as what was not.
        shared = SharedRuns(runs, 5.0, Beside(0.0, [0.0] * 9))
        shared.train(fedavg, 2, [0], last=False)
        after_two = shared.clock()
        shared.train(fedavg, 3, [0], last=False)
        shared.train(fedavg, 3, [0], last=False)  # of this race: for nothing
        clocks.append((after_two, shared.clock()))
    trained = [RunFolder(path.parent).rounds() for path in tmp_path.glob("*/summary.json")]
    two, three = sorted(trained, key=len)
    seconds_of_two = sum(record.seconds.round for record in two)
    # The first round is that of the shorter run.
    of_last_two = sum(record.seconds.round for record in three[1:])
    assert clocks[0][0] == pytest.approx(5 + seconds_of_two)
    assert clocks[0][1] == pytest.approx(5 + seconds_of_two + of_last_two)
    assert clocks[1] == pytest.approx(clocks[0])


@pytest.mark.parametrize("name", race_scores.FEDERATIONS)
def test_scores_are_kept_of_every_federation_and_method(name: str) -> None:
    kept = race_scores.kept(name)["full"]
    entry = ENTRIES[name]
    rates = [f"{column['learning-rate']:g}" for column in entry["columns"].values()]
    assert list(kept["scores"]) == sorted(entry["methods"])
    assert kept["own-rate"] == rates[0] and sorted(kept["scores"]["fedavg"]) == sorted(rates)
