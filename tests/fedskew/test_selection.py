"""The candidates of a race and their measurements; that a race repeats; what it refuses."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from command_line import FedSkew
from rich.console import Console

from data import DataError, DataSettings, SettingError, federate, load
from fedskew.cli.select_execution import adopt, contenders_of
from fedskew.diagnosis.planned import diagnosis_of
from fedskew.diagnosis.table import read_counts
from fedskew.method_selection.candidates import (
    Candidate,
    Contenders,
    Entrant,
    all_methods,
    contenders_by_training,
    from_best_head,
    possible,
    split_start,
)
from fedskew.method_selection.conduct import Runs, Trained, with_continued
from fedskew.method_selection.counts import partition_by_counts
from fedskew.method_selection.race_log import RaceLog, Step
from fedskew.method_selection.targets import TARGETS, scores_of, target_of
from fedskew.method_selection.uncertainty import difference
from fedskew.method_selection.uploads import excluded, permissions_of, upload_text
from server_app.continuation import continue_from
from server_app.predictions import Predictions, read_predictions
from server_app.record import ModelNumbers, Spread
from server_app.run_folder import RunFolder
from server_app.run_settings import RunSettings, Scalar
from server_app.settings import parse

NUMBERS = ModelNumbers(
    means={"balanced-accuracy": 0.5, "accuracy": 0.6, "auroc": 0.9, "brier": 0.25},
    recall=[0.75, 0.25, math.nan],
    spreads={"local-accuracy": Spread(0.7, 0.4), "client-accuracy": Spread(0.8, 0.3)},
)


@pytest.mark.parametrize(
    ("target", "score", "text"),
    [
        ("balanced-accuracy", 50.0, "50.0"),
        # Nine of ten samples are of the first class; nobody tests the third: (9 * 0.75 + 1 * 0.25) / 10.
        ("accuracy", 70.0, "70.0"),
        ("site-mean", 70.0, "70.0"),
        ("worst-site", 40.0, "40.0"),
        ("auroc", 90.0, "90.0"),
        ("brier", -25.0, "0.250"),
    ],
)
def test_a_target_is_a_score_of_which_more_is_better(target: str, score: float, text: str) -> None:
    scores = scores_of(NUMBERS, [90, 10, 50], own_tests=False)
    assert scores.keys() == TARGETS.keys()
    assert scores[target] == pytest.approx(score)
    assert TARGETS[target].text(scores[target]) == text
    assert TARGETS[target].text(math.nan) == "-"


def test_sites_with_test_samples_of_their_own_are_measured_on_these() -> None:
    scores = scores_of(NUMBERS, None, own_tests=True)
    assert (scores["site-mean"], scores["worst-site"]) == pytest.approx((80.0, 30.0))
    assert scores["accuracy"] == pytest.approx(60.0), "without counts the shares of what was tested"
    assert math.isnan(scores_of(ModelNumbers(), [1], own_tests=False)["worst-site"])
    assert target_of("auroc", 100).name == "auroc"
    with pytest.raises(SettingError, match="auroc': is measured for at most 100 classes"):
        target_of("auroc", 101)


def test_a_permission_that_is_not_given_leaves_methods_out() -> None:
    methods = ["fedshift", "ccvr", "refit-bias", "creff", "scaffold", "scaffold+ccvr", "fedlc"]
    runs = possible(methods, {})
    assert list(runs) == ["fedavg", *methods]
    needed = {method: sorted(permissions_of(run)) for method, run in runs.items()}
    assert needed == {
        "fedavg": [],
        "fedshift": ["class-counts"],
        "ccvr": ["class-counts", "class-statistics"],
        "refit-bias": ["class-counts", "class-predictions"],
        "creff": ["head-gradients"],
        "scaffold": ["control-variates"],
        "scaffold+ccvr": ["class-counts", "class-statistics", "control-variates"],
        "fedlc": [],
    }
    without = possible(methods, {}, ["class-statistics"])
    assert list(without) == ["fedavg", "fedshift", "refit-bias", "creff", "scaffold", "fedlc"]
    without = possible(methods, {}, ["class-predictions"])
    assert list(without) == ["fedavg", *(name for name in methods if name != "refit-bias")]
    without = possible(methods, {}, ["class-counts"])
    assert list(without) == ["fedavg", "creff", "scaffold", "fedlc"], (
        "statistics and predictions hold the counts"
    )
    assert upload_text("fedlc") == "nothing"
    assert upload_text("scaffold+ccvr").count(";") == 1
    with pytest.raises(
        SettingError, match=r"^--without = .*leaves none but FedAvg: ccvr upload it"
    ):
        possible(["ccvr"], {}, ["class-statistics"])
    with pytest.raises(SettingError, match=r"^--without = 'model': must be some of class-counts"):
        excluded(["model"])


def test_every_training_comes_with_every_head_that_goes_with_it() -> None:
    contenders = contenders_by_training(possible(all_methods(), {"model": "mlp-bn"}), None)
    assert contenders.methods["fedavg"] == ("ccvr", "refit-bias", "tau-norm", "fedavg")
    heads = ("scaffold+ccvr", "scaffold+refit-bias", "scaffold+tau-norm")
    assert contenders.methods["scaffold"] == (*heads, "scaffold")
    for name in ("fedbn+ccvr", "fedbn+refit-bias"):
        assert name not in contenders.runs, "they need the model to be the same everywhere"
    assert "fedbn" in contenders.methods["fedbn"]
    assert contenders.methods["creff"] == ("creff",), "its time is not FedAvg's"
    assert not {"fed-lda", "fed3r"} & contenders.runs.keys(), "the features are trained"
    assert {"fedavg", "tau-norm", "fedprox", "fedlc"} <= contenders.uploads_nothing
    assert not {"ccvr", "refit-bias", "scaffold", "fedshift"} & contenders.uploads_nothing
    assert contenders.entrant_of(Candidate("ccvr", 0.1)) == Entrant("fedavg", 0.1)
    assert Candidate("scaffold+ccvr", 0.1) in contenders.candidates_of([Entrant("scaffold", 0.1)])


def test_heads_in_closed_form_come_first_where_the_features_are_fixed() -> None:
    settings: dict[str, Scalar] = {"model": "random-conv", "rounds": 3}
    contenders = contenders_by_training(possible(all_methods(), settings), None)
    assert contenders.methods["fedavg"][:3] == ("fed-lda", "fed-lda-pooled", "fed3r")
    assert {"fedncm", "fedcof", "ccvr", "fedavg"} <= {*contenders.methods["fedavg"]}
    permitted = contenders_by_training(
        possible(all_methods(), settings, ["class-statistics"]), None
    )
    assert permitted.methods["fedavg"] == ("refit-bias", "tau-norm", "fedavg")


def test_trainings_begin_with_the_best_head_where_the_features_are_fixed() -> None:
    fixed: dict[str, Scalar] = {"model": "random-conv", "rounds": 3}
    started = from_best_head(all_methods(), fixed)
    contenders = contenders_by_training(possible(started, fixed), None)
    # FedAvg itself, with which all are compared, begins with random weights, and gives the heads.
    assert {"fed-lda", "ccvr", "fedavg"} <= {*contenders.methods["fedavg"]}
    assert contenders.runs["fedavg"].head_start is None
    assert contenders.methods["fedavg from fed-lda"] == ("fedavg from fed-lda",)
    others = [name for name in contenders.methods if name != "fedavg"]
    assert "fedshift from fed-lda" in others and "creff from fed-lda" in others
    for training in others:
        assert training.endswith(" from fed-lda"), "from random weights it would only be behind"
        for name in contenders.methods[training]:
            run = contenders.runs[name]
            assert run.head_start is not None and run.head_start.name == "fed-lda"
            method, head = split_start(name)
            assert {*run.general.method.split("+")} == {*method.split("+")} and head == "fed-lda"
    assert "fedprox from fed-lda" not in contenders.uploads_nothing, "its head takes statistics"


@pytest.mark.parametrize(
    ("settings", "without"),
    [
        ({"model": "mlp-bn"}, []),
        ({"model": "random-conv", "augmentation": "crop-flip", "dataset": "cifar10"}, []),
        ({"model": "random-conv", "head-start": "fed-lda-pooled"}, []),
        ({"model": "random-conv", "rounds": 0}, []),
        ({"model": "random-conv"}, ["class-statistics"]),
        ({"model": "random-conv"}, ["class-counts"]),
    ],
)
def test_trainings_begin_as_ever_where_no_head_fits_or_may_leave(
    settings: dict[str, Scalar], without: list[str]
) -> None:
    assert from_best_head(["fedavg", "fedshift"], settings, without) == ["fedavg", "fedshift"]
    fits: dict[str, Scalar] = {"model": "random-conv"}
    started = from_best_head(["fedavg", "fedshift"], fits, ["head-gradients"])
    assert started == ["fedavg", "fedshift from fed-lda", "fedavg from fed-lda"]


def test_a_training_from_a_head_is_run_and_named_so(tmp_path: Path) -> None:
    settings: dict[str, Scalar] = {
        "dataset": "digits",
        "model": "random-conv",
        "train-images": 300,
        "clients": 3,
        "local-epochs": 1,
        "results": str(tmp_path),
    }
    names = ["fedavg", "fedshift from fed-lda"]
    contenders = contenders_by_training(possible(names, settings), None)
    validation: dict[str, Scalar] = {"validation-fraction": 0.2}
    console = Console(quiet=True)
    runs = Runs(contenders, settings, validation, "balanced-accuracy", console, jobs=1)
    entrants = [Entrant(name, 0.01) for name in names]
    scores = runs.train(entrants, 1, [0], last=False).validated
    of_head = Candidate("fedshift from fed-lda", 0.01)
    # One round from random weights is far from what the head begins with.
    assert scores[of_head][0].score > scores[Candidate("fedavg", 0.01)][0].score + 20
    made_by = {"method": "fedshift", "head-start": "fed-lda", "learning_rate": 0.01}
    assert of_head.as_json() == made_by
    assert Candidate("fedavg", 0.01).as_json() == {"method": "fedavg", "learning_rate": 0.01}
    assert "class counts" in upload_text(*split_start("fedprox from fed-lda"))
    assert upload_text(*split_start("fedprox")) == "nothing"


def rungs(
    folder: Path, rounds: Sequence[int], **changes: Scalar
) -> tuple[dict[str, float], list[str]]:
    """Train the rungs of a race; return the last one's scores, and what its runs hash to."""
    settings: dict[str, Scalar] = {
        "model": "mlp-bn",
        "train-images": 100,
        "rounds": rounds[-1],
        "local-epochs": 1,
        "min-samples": 5,
        "clients": 3,
        "results": str(folder),
        **changes,
    }
    contenders = contenders_by_training(possible(["ccvr"], settings), None)
    validation: dict[str, Scalar] = {"validation-fraction": 0.3}
    console = Console(quiet=True)
    runs = Runs(contenders, settings, validation, "balanced-accuracy", console, jobs=1)
    for number in rounds:
        results = runs.train([Entrant("fedavg", 0.05)], number, [0], last=False)
    continued = with_continued(contenders, settings).continued
    assert continued == (set() if "schedule" in changes else {"fedavg"})
    scores = {one.method: by_seed[0].score for one, by_seed in results.validated.items()}
    hashes = []
    for file in folder.glob("*/summary.json"):
        summary = json.loads(file.read_text())
        if summary["rounds"] == rounds[-1]:
            hashes.append(summary["hash"]["all"])
    return scores, hashes


@pytest.mark.parametrize("changes", [{}, {"schedule": "cosine"}], ids=["continued", "anew"])
def test_a_race_s_rung_has_the_numbers_of_a_full_run(
    changes: dict[str, Scalar], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_over: list[int] = []

    def counted(longer: RunSettings, shorter: RunSettings) -> int:
        taken_over.append(continue_from(longer, shorter))
        return taken_over[-1]

    monkeypatch.setattr("fedskew.method_selection.conduct.continue_from", counted)
    by_rungs = rungs(tmp_path / "rungs", [2, 4], **changes)
    assert taken_over == ([] if changes else [1]), "a cosine over the run's rounds starts anew"
    assert by_rungs == rungs(tmp_path / "full", [4], **changes)
    assert len(by_rungs[1]) == 1 and by_rungs[0].keys() == {"fedavg", "ccvr"}


def test_a_diagnosis_orders_trainings_whatever_they_begin_with() -> None:
    settings: dict[str, Scalar] = {"model": "random-conv", "alpha": 0.05, "train-images": 500}
    diagnosis = diagnosis_of(parse({**settings, "method": "fedavg"}))
    assert diagnosis is not None and "label" in diagnosis.names
    methods = from_best_head(["fedprox", "fedshift", "fedavg"], settings)
    contenders = contenders_by_training(possible(methods, settings), diagnosis)
    order = list(contenders.methods)
    assert order.index("fedshift from fed-lda") < order.index("fedprox from fed-lda")


def test_first_in_a_short_race_is_what_answers_the_skew() -> None:
    def contenders(settings: dict[str, Scalar]) -> Contenders:
        stated: dict[str, Scalar] = {"model": "mlp-bn", **settings}
        diagnosis = diagnosis_of(parse({"method": "fedavg", **stated}))
        assert diagnosis is not None
        return contenders_by_training(possible(all_methods(), stated), diagnosis)

    assert list(contenders({"partition": "llt", "alpha": 0.9}).methods)[:2] == ["fedavg", "iwds"]
    assert list(contenders({"imbalance-factor": 50.0, "alpha": 0.5}).methods)[1] == "creff"
    label = contenders({"alpha": 0.1})
    assert list(label.methods)[1] == "fedshift" and list(label.methods)[-1] == "creff"
    assert label.always == ("fedavg",) and not label.slow
    scanners = contenders({"dataset": "digits-scanners"})
    assert list(scanners.methods)[1] == "fedbn"
    assert scanners.always == ("fedavg", "fedbn") and scanners.slow == ("fedbn",)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    """Return two models of a small run that is measured on validation data, by method."""
    settings: dict[str, Scalar] = {
        "model": "mlp-bn",
        "train-images": 200,
        "rounds": 2,
        "local-epochs": 1,
        "min-samples": 5,
        "results": str(tmp_path_factory.mktemp("results")),
    }
    contenders = contenders_by_training(possible(["ccvr"], settings), None)
    validation: dict[str, Scalar] = {"validation-fraction": 0.2}
    runs = Runs(contenders, settings, validation, "balanced-accuracy", Console(quiet=True), 1)
    results = runs.train([Entrant("fedavg", 0.05)], 2, [0], last=False)
    assert set(results.costs) == {"fedavg"} and results.costs["fedavg"].of(2) > 0
    assert {candidate.method for candidate in results.validated} == {"fedavg", "ccvr"}
    means = runs.all_targets(list(results.validated), 2)
    for candidate, by_seed in results.validated.items():
        assert means[str(candidate)]["balanced-accuracy"] == by_seed[0].score
    return {candidate.method: one for (candidate, _, _), one in runs.trained.items()}


@pytest.mark.parametrize("target", TARGETS)
def test_a_measurement_s_samples_are_those_of_its_score(
    target: str, trained: dict[str, Trained]
) -> None:
    """The score that the record has is what the kept outputs give, and its parts have about its variance."""
    one = trained["ccvr"]
    measurement = one.evaluated(target)
    assert measurement.score == scores_of(one.numbers, one.train_C, own_tests=False)[target]
    assert measurement.parts_U is not None and measurement.sample_set
    assert len(measurement.parts_U) == sum(map(sum, one.numbers.confusion or ()))
    by_parts = float(np.square(measurement.parts_U).sum())
    by_record = one.variance(target, one.numbers, one.weights(target, one.numbers))
    assert by_parts > 0 and by_record > 0
    if target == "brier":
        assert by_parts < by_record, "the record's is a bound"
    elif target == "auroc":
        assert by_parts < 4 * by_record, "that of a mean is not above the mean of the errors"
    else:
        weights_C = one.weights(target, one.numbers)
        assert weights_C is not None and weights_C.sum() == pytest.approx(1)
        recall_C = np.array(one.numbers.recall)
        sizes_C = np.array(one.samples["test"])
        unbiased_C = recall_C * (1 - recall_C) / (sizes_C - 1)
        assert by_parts == pytest.approx(1e4 * weights_C**2 @ unbiased_C)
        biased_C = recall_C * (1 - recall_C) / sizes_C
        assert by_record == pytest.approx(1e4 * weights_C**2 @ biased_C)
        of_recalls = 100 * weights_C @ np.nan_to_num(np.array(one.numbers.recall))
        assert of_recalls == pytest.approx(measurement.score)


def test_two_heads_of_one_training_are_measured_on_the_same_samples(
    trained: dict[str, Trained],
) -> None:
    average = trained["fedavg"].evaluated("accuracy")
    ccvr = trained["ccvr"].evaluated("accuracy")
    assert average.sample_set == ccvr.sample_set
    gain = difference({0: ccvr}, {0: average})
    assert gain is not None and gain.covers == "samples"
    assert average.parts_U is not None and ccvr.parts_U is not None
    paired = float(np.square(ccvr.parts_U - average.parts_U).sum())
    assert gain.error**2 == pytest.approx(paired)


def test_samples_that_were_not_kept_are_drawn_anew_for_validation_alone(
    trained: dict[str, Trained], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where clients measure: every seed cuts its own validation samples, and the test set stays."""
    one = trained["ccvr"]
    with_samples = one.evaluated("accuracy")
    assert with_samples.units_U is not None and with_samples.sample_set
    monkeypatch.setattr("fedskew.method_selection.conduct.read_predictions", lambda *_: None)
    on_validation = one.evaluated("accuracy")
    assert (on_validation.sample_set, on_validation.overlap) == ("", 0.2)
    assert on_validation.variance > 0 and on_validation.parts_U is None
    run = one.cell.run
    on_test_run = replace(run, data=replace(run.data, evaluate_on="test"))
    on_test = replace(one, cell=replace(one.cell, run=on_test_run)).evaluated("accuracy")
    assert (on_test.sample_set, on_test.overlap) == ("all", 0.0)
    assert on_test.variance == on_validation.variance


@pytest.mark.parametrize("target", ["balanced-accuracy", "auroc", "brier"])
def test_a_measurement_has_one_part_for_all_samples_of_a_subject(
    target: str, trained: dict[str, Trained], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = trained["ccvr"]
    of_samples = one.evaluated(target)
    assert of_samples.parts_U is not None
    subjects_N = np.arange(len(of_samples.parts_U)) // 3

    def with_subjects(folder: RunFolder, model: str) -> Predictions | None:
        predictions = read_predictions(folder, model)
        return None if predictions is None else predictions._replace(subjects_N=subjects_N)

    monkeypatch.setattr("fedskew.method_selection.conduct.read_predictions", with_subjects)
    of_subjects = one.evaluated(target)
    assert of_subjects.score == of_samples.score and of_subjects.parts_U is not None
    for subject in range(subjects_N[-1] + 1):
        part = of_samples.parts_U[subjects_N == subject].sum()
        assert of_subjects.parts_U[subject] == pytest.approx(part)
    assert len(of_subjects.parts_U) == subjects_N[-1] + 1 < len(subjects_N)


def test_the_diagnosis_is_of_the_sites_or_said_to_be_of_a_simulation() -> None:
    """A diagnosis of simulated sites must not be read as one of the reader's hospitals."""

    def printed(**settings: Scalar) -> str:
        out = Console(file=StringIO(), width=500)
        contenders_of(["fedprox"], {"model": "mlp-bn", **settings}, [], out)
        return out.file.getvalue()  # type: ignore[attr-defined]

    simulated = printed(alpha=0.1, clients=7)
    assert simulated.startswith("With FedSkew's simulated partition (lda, 7 clients), which says ")
    assert "nothing of your own sites: " in simulated
    assert printed(dataset="digits-scanners").startswith("With this partition: ")


def test_like_deals_exactly_the_counts(tmp_path: Path) -> None:
    table = tmp_path / "counts.csv"
    table.write_text("site,a,b,c\nnorth,5,0,2\nsouth,1,7,3\n")
    file = tmp_path / "partition.json"
    partition_by_counts(read_counts(table), load(DataSettings()), file, str(table))
    federation = federate(DataSettings(partition_file=str(file)), 0)
    assert (
        federation.counts_KC[:, :3].tolist() == [[5, 0, 2], [1, 7, 3]]
        and federation.counts_KC.sum() == 18
    )
    assert {*federation.dataset.test_labels[federation.global_test].tolist()} == {0, 1, 2}
    table.write_text("site,a,b\nnorth,5,0\nsouth,1,70000\n")
    with pytest.raises(
        DataError, match=r"counts.csv: class b has 70000 samples, and class 1 of digits \d+: divide"
    ):
        partition_by_counts(read_counts(table), load(DataSettings()), file, str(table))


@pytest.mark.slow
def test_a_race_begun_again_names_the_same_winner_with_the_same_numbers(
    fedskew: FedSkew, tmp_path: Path
) -> None:
    words = ["select", "--minutes", "0.6", "--method", "fedshift,ccvr", "--results", str(tmp_path),
             "--set", "model=mlp-bn", "--set", "train-images=200", "--set", "local-epochs=1", "--set", "rounds=3",
             "--set", "min-samples=5", "--target", "site-mean"]  # fmt: skip
    status, first, _ = fedskew(*words)
    assert status == 0
    (outcome,) = tmp_path.glob("race-*/result.json")
    result = json.loads(outcome.read_text())
    stated = [json.loads(file.read_text()) for file in tmp_path.glob("*/settings.json")]
    seeds = {run["settings"]["seed"] for run in stated if run["settings"]["tested-on"] == "test"}
    assert all(seed >= 100 for seed in seeds), "the race's own runs never look at the test set"
    assert result["lines"][0].startswith("winner: ") and result["lines"][-1] in first
    assert result["lines"][-1].startswith(f"take {result['take']['method']} ")
    told = result["validation-interval"] is not None and result["validation-interval"][0] > 0
    assert result["take"] == result["winner"] or (not told and result["take"]["method"] == "fedavg")
    assert result["target"] == "site-mean" and set(result["uploads"]) >= {"fedavg"}
    outcome.unlink()
    for summary in list(tmp_path.glob("*/summary.json"))[::2]:
        summary.unlink()
    again = fedskew(*words)[1]
    assert "the race goes on" in again and json.loads(outcome.read_text()) == result

    # Elsewhere, a race by the same plan trains everything again and ends alike.
    (plan,) = tmp_path.glob("race-*/plan.json")
    elsewhere = tmp_path / "elsewhere"
    words[words.index(str(tmp_path))] = str(elsewhere)
    status, repeated, _ = fedskew(*words, "--plan", plan)
    (outcome,) = elsewhere.glob("race-*/result.json")
    assert status == 0 and f"the race follows {plan}" in " ".join(repeated.split())
    assert json.loads(outcome.read_text()) == result


def test_a_plan_is_of_a_race_with_the_same_options(tmp_path: Path) -> None:
    def plan_at(place: str, seconds: float) -> Path:
        log = RaceLog(tmp_path / place / "plan.json")
        entrants = (Entrant("fedavg", 0.1),)
        log.steps = [Step("pace", entrants, 1, (0,), predicted=seconds, seconds=seconds)]
        log.save()
        return log.path

    earlier = plan_at("there/race-1", 1.0)
    here = tmp_path / "here" / "race-1" / "plan.json"
    adopt(earlier, here)
    assert here.read_text() == earlier.read_text()
    adopt(earlier, here)  # a race that goes on
    with pytest.raises(
        SettingError, match="must be of a race with the same options, whose folder is race-1"
    ):
        adopt(plan_at("there/race-2", 1.0), here)
    with pytest.raises(SettingError, match="by which this race has begun: leave --plan out"):
        adopt(plan_at("elsewhere/race-1", 2.0), here)
    with pytest.raises(SettingError, match="is no file"):
        adopt(tmp_path / "race-1" / "plan.json", here)
    earlier.write_text("{}")
    with pytest.raises(SettingError, match="is damaged"):
        adopt(earlier, tmp_path / "third" / "race-1" / "plan.json")


def test_what_a_race_cannot_do_is_one_sentence(fedskew: FedSkew, tmp_path: Path) -> None:
    small = ["--results", str(tmp_path), "--set", "train-images=100", "--set", "min-samples=2"]
    for words, said in (
        (["--minutes", "0.001"], "--minutes = 0.001: is less than a race of one round takes"),
        (["--minutes", "1", "--set", "method=fedavg"], "method = 'fedavg': is the race's own"),
        (["--minutes", "1", "--method", "fedsift"], "did you mean fedshift"),
        (["--minutes", "1", "--target", "f1"], "--target = 'f1': must be one of balanced-accuracy"),
        (["--minutes", "1", "--without", "scores"], "--without = 'scores': must be some of"),
        (["--minutes", "1", "--match-counts", str(tmp_path / "no.csv")], "no.csv"),
        (
            ["--minutes", "1", "--set", "train-images=10", "--set", "partition=iid"],
            "client 0 has 1",
        ),
    ):
        status, _, error = fedskew(
            "select", *words, *[word for word in small if "train-images=10" not in words]
        )
        assert status == 2 and said in error and error.count("\n") == 1, error
