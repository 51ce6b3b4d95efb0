"""The suite of benchmarks: what it names is there, its rows become tables, and its numbers are computed right."""

import importlib.util
import math
from pathlib import Path

import pytest

from benchmarks import race_scores
from benchmarks.__main__ import SUITE
from benchmarks.peers.work import WORKS
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
