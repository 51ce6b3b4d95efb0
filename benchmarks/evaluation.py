"""What the server's test costs beside the passes through the network alone: 2,000 images, one thread."""

from collections.abc import Iterator

import torch

from benchmarks.figures import Row, alternate, figure, seconds
from client_app.metrics import evaluate_models
from client_app.models import build
from client_app.models.classifier import INFERENCE_BATCH
from data import Samples

IMAGES = 2000
NETWORKS = {"small-cnn": (3, 32, 32), "mcmahan-cnn": (1, 28, 28), "resnet-8": (3, 32, 32)}
"""The shape of their inputs, by name."""


def rows() -> Iterator[Row]:
    """Yield the figures."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for name, shape in NETWORKS.items():
        model = build(name, shape, 10, 0)
        state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        inputs_N, labels_N = torch.randn(IMAGES, *shape), torch.arange(IMAGES) % 10
        samples = Samples(inputs_N, labels_N, torch.zeros(1), torch.ones(1))

        @torch.no_grad()
        def passes(model: torch.nn.Module = model, samples: Samples = samples) -> int:
            model.eval()
            right = 0
            for indices_B in torch.arange(IMAGES).split(INFERENCE_BATCH["cpu"]):
                right += int(
                    (model(samples.batch(indices_B)).argmax(1) == samples.labels_N[indices_B]).sum()
                )
            return right

        measured, bare = alternate(
            lambda m=model, d=state, s=samples: evaluate_models(m, {"average": d}, s), passes
        )
        yield figure(f"all numbers of {name} / its passes and the accuracy", measured, bare)
        yield seconds(f"all numbers of {name}", measured)
