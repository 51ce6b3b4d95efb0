"""What every variant has to keep to; a new one joins by adding a row."""

import json
import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pytest
import torch
from client_builders import broadcast_of, same, small_client, train_rounds

from client_app.client import Upload, Variant
from client_app.optimizer import TrainingSettings
from client_app.run_spec import RunSpec
from client_app.state import digest
from client_app.training import train_round
from client_app.variants import VARIANTS
from client_app.variants.augmented_gradients import AugmentedGradients
from client_app.variants.class_predictions import ClassPredictions
from client_app.variants.class_statistics import ClassStatistics
from client_app.variants.class_weights import ClassWeights
from client_app.variants.control_variates import ControlVariates
from client_app.variants.decorrelation import Decorrelation
from client_app.variants.dynamic_regularization import DynamicRegularization
from client_app.variants.feature_gradients import FeatureGradients
from client_app.variants.feature_statistics import (
    BalancedStatistics,
    ClassMeans,
    ClientMeans,
    FeatureStatistics,
    LabelCounts,
)
from client_app.variants.focal import Focal
from client_app.variants.head_then_features import HeadThenFeatures
from client_app.variants.label_discrepancy import LabelDiscrepancy
from client_app.variants.local_batch_norm import LocalBatchNorm
from client_app.variants.local_head import LocalHead
from client_app.variants.local_model import LocalModel
from client_app.variants.local_statistics import LocalStatistics
from client_app.variants.logit_calibration import LogitCalibration
from client_app.variants.logit_shift import LogitShift
from client_app.variants.model_contrast import ModelContrast
from client_app.variants.not_true_distillation import NotTrueDistillation
from client_app.variants.personal_model import PersonalModel
from client_app.variants.proximal import Proximal
from client_app.variants.resampling import Resampling
from client_app.variants.restricted_softmax import RestrictedSoftmax
from client_app.variants.reweighting import Reweighting
from client_app.variants.vacant_classes import VacantClasses
from data import DataSettings, SettingError

SETTINGS = TrainingSettings(local_epochs=1, batch_size=4, learning_rate=0.1, momentum=0.5)
SKEWED = [(8, 4, 2, 1), (1, 2, 4, 8)]
MISSING = [(8, 0, 2, 1), (1, 2, 0, 0)]
ALIKE = [(4, 3, 2, 1), (4, 3, 2, 1)]


@dataclass(frozen=True)
class Row:
    default: Variant
    other: Variant
    """With every field away from its default."""
    identity: Variant | None
    """With this setting, the clients of `identity_counts` train as without the variant."""
    identity_counts: tuple[tuple[int, ...], ...] | list[tuple[int, ...]]
    changes_weights: bool = True
    effect_counts: list[tuple[int, ...]] = field(default_factory=lambda: SKEWED)
    """Clients for whom the default has an effect."""
    wrong: tuple[dict[str, object], ...] = ()
    """Fields that are refused."""
    answers: bool = False
    """Whether its whole effect is its answer to the question of its name."""
    keeps: bool = False
    """Whether its whole effect is what the client keeps under its name."""


ROWS = [
    Row(
        AugmentedGradients(),
        AugmentedGradients(min_class_samples=3, repeats=3, batch_size=2),
        AugmentedGradients(),
        SKEWED,
        changes_weights=False,
        wrong=({"min_class_samples": 0}, {"repeats": 0}, {"batch_size": 0}),
    ),
    Row(ControlVariates(), ControlVariates(option="I"), None, SKEWED, wrong=({"option": "III"},)),
    Row(
        ClassPredictions(),
        ClassPredictions(min_class_samples=3),
        ClassPredictions(),
        SKEWED,
        changes_weights=False,
        wrong=({"min_class_samples": 0},),
        answers=True,
    ),
    Row(
        ClassStatistics(),
        ClassStatistics(min_class_samples=3, covariance="diagonal"),
        ClassStatistics(),
        SKEWED,
        changes_weights=False,
        wrong=({"min_class_samples": 0}, {"covariance": "none"}),
        answers=True,
    ),
    Row(ClassWeights(), ClassWeights(), None, SKEWED),
    Row(
        FeatureGradients(),
        FeatureGradients(min_class_samples=3, classes_per_round=1),
        FeatureGradients(),
        SKEWED,
        changes_weights=False,
        wrong=({"min_class_samples": 0}, {"classes_per_round": -1}),
    ),
    Row(
        Focal(),
        Focal(gamma=0.5, alpha=2.0),
        Focal(gamma=0.0),
        SKEWED,
        wrong=({"gamma": -1.0}, {"gamma": float("inf")}, {"alpha": 0.0}, {"alpha": float("inf")}),
    ),
    Row(
        Decorrelation(),
        Decorrelation(beta=0.5, form="paper"),
        Decorrelation(beta=0.0),
        SKEWED,
        wrong=({"beta": -1.0}, {"beta": float("inf")}, {"form": "mean"}),
    ),
    Row(
        DynamicRegularization(),
        DynamicRegularization(alpha=0.5),
        DynamicRegularization(alpha=0.0),
        SKEWED,
        wrong=({"alpha": -1.0}, {"alpha": float("inf")}),
    ),
    Row(
        LabelDiscrepancy(),
        LabelDiscrepancy(measure="l2"),
        LabelDiscrepancy(),
        SKEWED,
        changes_weights=False,
        wrong=({"measure": "cosine"},),
        answers=True,
    ),
    Row(LocalBatchNorm(), LocalBatchNorm(), None, SKEWED),
    Row(
        HeadThenFeatures(),
        HeadThenFeatures(head_epochs=2),
        None,
        SKEWED,
        wrong=({"head_epochs": 0},),
    ),
    Row(LocalHead(), LocalHead(), None, SKEWED),
    Row(LocalModel(), LocalModel(), None, SKEWED),
    Row(LocalStatistics(), LocalStatistics(), None, SKEWED),
    Row(
        LogitCalibration(),
        LogitCalibration(tau=0.5),
        LogitCalibration(tau=0.0),
        SKEWED,
        wrong=({"tau": -1.0}, {"tau": float("inf")}),
    ),
    Row(
        LogitShift(),
        LogitShift(smoothing=0.5, scale=0.5, target="mixed", local_share=0.5),
        LogitShift(scale=0.0),
        SKEWED,
        wrong=(
            {"smoothing": -1.0},
            {"smoothing": 0.1},
            {"scale": -0.5},
            {"scale": float("inf")},
            {"target": "local"},
            {"local_share": 0.5},
            {"local_share": 1.5},
        ),
    ),
    Row(
        ModelContrast(),
        ModelContrast(mu=0.5, temperature=0.1),
        ModelContrast(mu=0.0),
        SKEWED,
        wrong=({"mu": -1.0}, {"mu": float("inf")}, {"temperature": 0.0}),
    ),
    Row(
        NotTrueDistillation(),
        NotTrueDistillation(beta=0.5, temperature=3.0),
        NotTrueDistillation(beta=0.0),
        SKEWED,
        wrong=({"beta": -1.0}, {"beta": float("inf")}, {"temperature": 0.0}),
    ),
    Row(
        PersonalModel(),
        PersonalModel(strength=0.5),
        PersonalModel(),
        SKEWED,
        changes_weights=False,
        wrong=({"strength": -1.0}, {"strength": float("inf")}),
        keeps=True,
    ),
    Row(
        Proximal(),
        Proximal(mu=0.5),
        Proximal(mu=0.0),
        SKEWED,
        wrong=({"mu": -1.0}, {"mu": float("inf")}),
    ),
    Row(
        Resampling(),
        Resampling(beta_start=0.3, beta_end=0.0, decay=0.1, warm_up_rounds=1),
        Resampling(warm_up_rounds=2),  # plain shuffles until then
        SKEWED,
        wrong=({"beta_start": 1.1}, {"beta_end": -0.1}, {"decay": 2.0}, {"warm_up_rounds": -1}),
    ),
    Row(
        RestrictedSoftmax(),
        RestrictedSoftmax(alpha=0.0),
        RestrictedSoftmax(alpha=1.0),
        MISSING,
        effect_counts=MISSING,
        wrong=({"alpha": -0.1}, {"alpha": 1.1}),
    ),
    Row(
        VacantClasses(),
        VacantClasses(calibration=0.5, distillation=1.0, suppression=0.1),
        VacantClasses(calibration=0.0, distillation=0.0, suppression=0.0),
        MISSING,
        wrong=(
            {"calibration": -1.0},
            {"distillation": -1.0},
            {"suppression": float("inf")},
        ),
    ),
    Row(
        Reweighting(),
        Reweighting(smoothing=2.0),
        Reweighting(),
        ALIKE,
        wrong=({"smoothing": -1.0}, {"smoothing": float("inf")}, {"smoothing": 1 / 3}),
    ),
]
WRONG_GRIDS: tuple[dict[str, object], ...] = (
    {"bits": 0},
    {"bits": 21},
    {"range": 0.0},
    {"range": -8.0},
    {"range": float("inf")},
)
ROWS += [
    Row(
        statistics(),
        statistics(bits=10, range=4.0),
        statistics(),
        SKEWED,
        changes_weights=False,
        wrong=WRONG_GRIDS,
        answers=True,
    )
    for statistics in (BalancedStatistics, ClassMeans, ClientMeans, FeatureStatistics)
]
ROWS.append(
    Row(LabelCounts(), LabelCounts(), LabelCounts(), SKEWED, changes_weights=False, answers=True)
)
every_variant = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.default.name)


def test_every_variant_has_a_row() -> None:
    assert sorted(row.default.name for row in ROWS) == sorted(VARIANTS)
    assert all(VARIANTS[row.default.name] is type(row.default) for row in ROWS)


@every_variant
def test_identity_is_plain_training_to_the_bit(row: Row) -> None:
    plain, _ = train_rounds([], row.identity_counts, SETTINGS)
    if row.identity is None:
        pytest.skip("the docstring says that there is none")
    shared, _ = train_rounds([row.identity], row.identity_counts, SETTINGS)
    assert same(shared, plain)


@every_variant
def test_the_default_has_an_effect(row: Row) -> None:
    plain, plain_reports = train_rounds([], row.effect_counts, SETTINGS)
    shared, reports = train_rounds([row.default], row.effect_counts, SETTINGS)
    if row.changes_weights:
        pairs = zip(reports, plain_reports, strict=True)
        assert any(not same(report.trained.state, other.trained.state) for report, other in pairs)
    elif row.answers:
        assert same(shared, plain) and row.default.answer(small_client(), row.default.name)
    elif row.keeps:
        assert same(shared, plain)
        assert all(report.memory[row.default.name] for report in reports)
    else:
        assert same(shared, plain)
        assert [report.uploads.keys() for report in reports] != [
            report.uploads.keys() for report in plain_reports
        ]


@every_variant
def test_the_other_fields_have_an_effect(row: Row) -> None:
    if row.other == row.default:
        pytest.skip("no fields")
    counts = [(8, 0, 0, 1), (1, 2, 4, 0)]

    def results(variant: Variant) -> str:
        shared, reports = train_rounds([variant], counts, SETTINGS, rounds=3)
        answer = variant.answer(small_client(counts[0]), variant.name)
        return digest(
            [
                shared,
                answer,
                *(report.uploads.get(variant.name, {}) for report in reports),
                *(report.memory.get(variant.name, {}) for report in reports),
            ]
        )

    def changed(variant: Variant, unchanged: str, fields: dict[str, object]) -> str:
        try:
            return results(replace(variant, **fields))
        except SettingError:  # a field that goes with one choice of another
            return unchanged

    default, other = results(row.default), results(row.other)
    for key, value in asdict(row.other).items():
        towards = changed(row.default, default, {key: value})
        back = changed(row.other, other, {key: getattr(row.default, key)})
        assert towards != default or back != other, key


@every_variant
@pytest.mark.parametrize(
    "counts", [(6, 0, 3, 1), (0, 0, 5, 0), (0, 1, 0, 0)], ids=["missing", "one class", "one"]
)
@pytest.mark.parametrize("which", ["default", "other"])
def test_missing_classes_and_a_single_example(
    row: Row, counts: tuple[int, ...], which: str
) -> None:
    if which == "other" and row.other == row.default:
        pytest.skip("no fields")
    shared, reports = train_rounds([getattr(row, which)], [counts, (3, 2, 2, 0)], SETTINGS)
    assert all(torch.isfinite(tensor).all() for tensor in shared.values())
    least = -1.0 if row.default.requirements.signed_loss else 0.0
    assert all(least <= report.loss < float("inf") for report in reports)
    assert [report.examples for report in reports] == [sum(counts), 7]
    for report in reports:
        assert all(
            torch.isfinite(t).all() for upload in report.uploads.values() for t in upload.values()
        )


@every_variant
def test_nothing_is_mutated(row: Row) -> None:
    client = small_client()
    client = replace(client, broadcast=broadcast_of([row.default], [client]))
    given = [
        client.start,
        *client.broadcast.values(),
        {"x": client.samples.inputs_N, "y": client.labels_N},
    ]
    before = digest(given)
    train_round(client, [row.default], SETTINGS)
    assert digest(given) == before


@every_variant
def test_no_method_of_the_projects_own_trains_parameters_or_records_numbers(row: Row) -> None:
    client = small_client()
    client = replace(client, broadcast=broadcast_of([row.default], [client]))
    report = train_round(client, [row.default], SETTINGS)
    assert row.default.parameters(client) == {} and not client.parameters
    assert report.numbers == {}


@every_variant
def test_one_instance_serves_every_client(row: Row) -> None:
    first = train_rounds([row.default], SKEWED, SETTINGS)[0]
    assert same(train_rounds([row.default], SKEWED, SETTINGS)[0], first)


@every_variant
@pytest.mark.parametrize("which", ["default", "other"])
def test_json_round_trip(row: Row, which: str) -> None:
    run_spec = RunSpec(
        data=DataSettings(clients=3, alpha=0.7),
        training=SETTINGS,
        model="mlp-bn",
        variants=(getattr(row, which),),
        seed=2**40 + 1,
        device="cpu",
        folder=Path("/some folder/é"),
        code="abc",
    )
    assert RunSpec.from_json(run_spec.to_json()) == run_spec
    fields = json.loads(run_spec.to_json())
    assert fields["variants"].keys() == {row.default.name}
    assert list(fields) == sorted(fields), "one text per spec, whatever the order of its fields"


@every_variant
def test_wrong_fields_are_refused_by_name(row: Row) -> None:
    for fields in row.wrong:
        key = next(iter(fields)).replace("_", "-")
        with pytest.raises(SettingError, match=f"{row.default.name}.{key}"):
            type(row.default)(**fields)


@every_variant
def test_the_docstring_states_the_identity(row: Row) -> None:
    text = type(row.default).__doc__ or ""
    assert re.search(r"Identity|no identity setting|Nothing else changes", text)
    assert (row.identity is None) == ("no identity setting" in text)


def test_an_upload_that_contradicts_itself_is_refused() -> None:
    """Answers are sent once, and of answers that are kept apart there is no sum to send back."""
    Upload(once=True, question="q", by_client=True, returned=False)
    Upload(once=True, question="q")
    with pytest.raises(ValueError, match="the answer to q is sent once"):
        Upload(question="q")
    with pytest.raises(ValueError, match="are not sent to each other: returned=False"):
        Upload(once=True, question="q", by_client=True)
