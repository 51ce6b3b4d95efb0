"""Networks on the meta device have the shapes of the real ones, without torch's compiler."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from client_app.models import build
from client_app.models.outline import without_numbers


@pytest.mark.parametrize(
    "name", ["mcmahan-cnn", "vgg-9", "resnet-8", "mlp-bn", "random-conv", "linear"]
)
def test_the_outline_of_a_model_is_the_model_s(name: str) -> None:
    shape = (20,) if name in ("mlp-bn", "linear") else (3, 64, 64)
    model = build(name, shape, 5, 0)
    with without_numbers():
        outline = build(name, shape, 5, 0)
        logits_BC = outline.eval()(torch.empty(2, *shape))
    assert logits_BC.shape == (2, 5)
    wanted = {name: (tensor.shape, tensor.dtype) for name, tensor in model.state_dict().items()}
    found = {name: (tensor.shape, tensor.dtype) for name, tensor in outline.state_dict().items()}
    assert found == wanted
    assert all(tensor.is_meta for tensor in outline.parameters())
    assert model.trained.keys() == outline.trained.keys()


def test_outside_of_it_numbers_are_drawn_and_computed() -> None:
    with without_numbers(), torch.device("cpu"):
        drawn = torch.randn(3)
        layer = nn.Linear(3, 2)
        assert F.relu(layer(drawn)).shape == (2,)
    assert drawn.count_nonzero() == 3
    assert layer.weight.count_nonzero() == 6
