"""A client's local training with precision = bfloat16 beside float32: 128 samples, batch 32, one thread, in turns."""

from collections.abc import Callable, Iterator

import torch

from benchmarks.figures import Row, alternate, figure, seconds
from client_app.client import Client
from client_app.models import build
from client_app.optimizer import TrainingSettings
from client_app.training import train_round
from data import Samples

SAMPLES, CLASSES = 128, 10
MODELS = {
    "mlp-bn": (1, 8, 8),
    "small-cnn": (1, 8, 8),
    "mcmahan-cnn": (1, 28, 28),
    "resnet-8": (3, 32, 32),
}
"""With the inputs that each is made for."""


def training(model: str, shape: tuple[int, ...], precision: str) -> Callable[[], object]:
    """Return a client's local round."""
    draws = torch.Generator().manual_seed(0)
    images_N = torch.randn(SAMPLES, *shape, generator=draws)
    samples = Samples(images_N, torch.arange(SAMPLES) % CLASSES, torch.zeros(1), torch.ones(1))
    settings = TrainingSettings(
        learning_rate=0.01,
        batch_size=32,
        local_epochs=1,
        precision=precision,
    )
    client = Client(
        id=0,
        model=build(model, shape, CLASSES, 0),
        samples=samples,
        num_classes=CLASSES,
    )
    return lambda: train_round(client, (), settings)


def rows() -> Iterator[Row]:
    """Yield the figures."""
    torch.set_num_threads(1)
    for model, shape in MODELS.items():
        half, whole = alternate(
            *(training(model, shape, precision) for precision in ("bfloat16", "float32"))
        )
        yield figure(f"local training of {model}, bfloat16 / float32", half, whole)
        yield seconds(f"a step of {model} in float32", [time / (SAMPLES // 32) for time in whole])
