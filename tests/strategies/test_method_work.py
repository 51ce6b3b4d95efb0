"""What a method says of its own work and memory, which the costs before a run and the order of a sweep rest on.

A pass forward and backward counts 1, a pass forward alone a third.
"""

import pytest
from server_builders import CLASSES, WIDTH, model_of

from client_app.optimizer import TrainingSettings
from strategies.ccvr import CCVR
from strategies.core.server import ServerMethod, Work
from strategies.creff import CReFF
from strategies.creff_code import CReFFCode
from strategies.fed3r import Fed3R
from strategies.fedavg import FedAvg
from strategies.fedbe import FedBE
from strategies.feddf import FedDF
from strategies.ratio_loss import RatioLoss
from strategies.real_blocks import RealBlocks
from strategies.real_features import RealFeatures

HOLDOUT, UPDATES = 30, 7


def work_of(method: ServerMethod) -> Work:
    return method.work(model_of(), HOLDOUT, UPDATES, TrainingSettings())


@pytest.mark.parametrize(
    ("method", "work"),
    [
        (FedAvg(), Work()),
        # every class has its virtual features, and every step of the head sees all of them
        (CCVR(features_per_class=9, head_steps=11), Work(features=CLASSES * 9 * 11)),
        # a feature step has two gradients: the loss's by the features goes through the head's gradient
        (
            CReFF(features_per_class=9, feature_steps=5, head_steps=11),
            Work(features=CLASSES * 9 * (3 * 5 + 11)),
        ),
        # one head for each m of a sweep, of which 0 has no features
        (
            CReFF(sweep="0,9,20", feature_steps=5, head_steps=11),
            Work(features=CLASSES * (9 + 20) * (3 * 5 + 11)),
        ),
        (
            CReFFCode(features_per_class=9, feature_steps=5, head_epochs=2),
            Work(features=CLASSES * 9 * (3 * 5 + 2)),
        ),
        # the student's batches, and the teachers' outputs on all samples
        (FedDF(steps=5, batch_size=8), Work(samples=5 * 8 + UPDATES * HOLDOUT / 3)),
        (FedDF(steps=5, batch_size=40), Work(samples=5 * HOLDOUT + UPDATES * HOLDOUT / 3)),
        (FedDF(steps=0), Work()),
        # the mean, the clients and the drawn models are the teachers
        (
            FedBE(steps=5, batch_size=8, models=3),
            Work(samples=5 * 8 + (1 + UPDATES + 3) * HOLDOUT / 3),
        ),
        (
            FedBE(steps=5, batch_size=40, models=0),
            Work(samples=5 * HOLDOUT + (1 + UPDATES) * HOLDOUT / 3),
        ),
        (FedBE(steps=0), Work()),
        # the model has one block of features
        (RealBlocks(steps=5, batch_size=8), Work(samples=5 * 8)),
        (RealBlocks(steps=5, batch_size=40), Work(samples=5 * HOLDOUT)),
        (RealFeatures(head_steps=11), Work(samples=HOLDOUT / 3, features=11 * HOLDOUT)),
    ],
    ids=lambda value: value.name if isinstance(value, ServerMethod) else "",
)
def test_the_work_of_a_round_is_counted_in_passes(method: ServerMethod, work: Work) -> None:
    assert work_of(method) == work


def test_the_memory_of_a_methods_own_work() -> None:
    """Six float64 matrices (D, D); three float64 tensors (C, C, D) and one of truth values."""
    model = model_of()
    assert FedAvg().memory_bytes(model) == 0
    assert Fed3R().memory_bytes(model) == 6 * WIDTH**2 * 8
    assert RatioLoss().memory_bytes(model) == CLASSES**2 * WIDTH * (3 * 8 + 1)
