"""What variants say of their own passes and of what clients keep, which the costs before a run rest on.

A pass forward and backward counts 1, a pass forward alone a third.
"""

import pytest
from client_builders import small_client

from client_app.client import Variant
from client_app.state import State
from client_app.variants.augmented_gradients import AugmentedGradients
from client_app.variants.class_predictions import ClassPredictions
from client_app.variants.class_statistics import ClassStatistics
from client_app.variants.control_variates import ControlVariates
from client_app.variants.feature_gradients import FeatureGradients
from client_app.variants.feature_statistics import FeatureStatistics, LabelCounts
from client_app.variants.head_then_features import HeadThenFeatures
from client_app.variants.model_contrast import ModelContrast
from client_app.variants.proximal import Proximal

SAMPLES, CLASSES_HELD = 120, 4


@pytest.mark.parametrize(
    ("variant", "passes"),
    [
        (Proximal(mu=0.1), 0),
        (LabelCounts(), 0),
        # all samples forward once
        (FeatureGradients(), SAMPLES / 3),
        (ClassStatistics(), SAMPLES / 3),
        (ClassPredictions(), SAMPLES / 3),
        (FeatureStatistics(), SAMPLES / 3),
        # all samples forward twice, through the model as received and the client's last one
        (ModelContrast(), 2 * SAMPLES / 3),
        # all samples forward and back once, for option I alone
        (ControlVariates(option="I"), SAMPLES),
        (ControlVariates(option="II"), 0),
        # every epoch of the head passes the features forward
        (HeadThenFeatures(head_epochs=6), 2 * SAMPLES),
        # a batch of every class, forward in each repeat; a client has no more than its samples
        (AugmentedGradients(repeats=5, batch_size=8), 5 * CLASSES_HELD * 8 / 3),
        (AugmentedGradients(repeats=5, batch_size=80), 5 * SAMPLES / 3),
    ],
    ids=lambda value: value.name if isinstance(value, Variant) else "",
)
def test_the_passes_beside_training_are_counted(variant: Variant, passes: float) -> None:
    assert variant.extra_samples(SAMPLES, CLASSES_HELD) == passes


def test_a_client_keeps_a_float64_control_for_every_parameter() -> None:
    """No other variant keeps anything of its own between rounds."""
    model = small_client().model
    kept: State = {name: weight.double() for name, weight in model.named_parameters()}
    bytes_kept = sum(tensor.numel() * tensor.element_size() for tensor in kept.values())
    assert ControlVariates().kept_bytes(model) == bytes_kept > 0
    assert Proximal(mu=0.1).kept_bytes(model) == 0
