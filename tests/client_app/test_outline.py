"""Networks on the meta device: the shapes that torch computes itself, without its compiler."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from client_app.models import build
from client_app.models.outline import ANSWERS, without_numbers

IMAGES = torch.zeros(2, 4, 9, 8)
WEIGHT = torch.zeros(6, 4, 3, 3)
CASES = [
    (torch.add, (IMAGES, torch.zeros(9, 1))),
    (torch.add, (IMAGES, torch.zeros(8, dtype=torch.float64))),
    (Tensor.add, (IMAGES, 1.5)),
    (Tensor.add_, (IMAGES, torch.zeros(8))),
    (Tensor.__add__, (IMAGES, IMAGES)),
    (Tensor.__iadd__, (IMAGES, IMAGES)),
    (Tensor.normal_, (IMAGES,)),
    (torch.cat, ([IMAGES, IMAGES.double()], 1)),
    (torch.rand, (3, 4)),
    (torch.randn, ((3, 4),)),
    (F.adaptive_avg_pool2d, (IMAGES, 3)),
    (F.adaptive_avg_pool2d, (IMAGES, (None, 1))),
    (F.batch_norm, (IMAGES, torch.zeros(4), torch.ones(4))),
    (F.conv2d, (IMAGES, WEIGHT)),
    (F.conv2d, (IMAGES, WEIGHT, None, 2, 1)),
    (F.conv2d, (IMAGES, WEIGHT, None, (1, 2), (2, 0), (2, 1))),
    (F.conv2d, (IMAGES, WEIGHT, None, 1, "same")),
    (F.conv2d, (IMAGES, WEIGHT, None, 1, "valid")),
    (F.group_norm, (IMAGES, 2)),
    (F.layer_norm, (IMAGES, (8,))),
    (F.linear, (IMAGES, torch.zeros(5, 8), torch.zeros(5))),
    (F.max_pool2d, (IMAGES, 2)),
    (F.max_pool2d, (IMAGES, 3, 2, 1)),
    (F.max_pool2d, (IMAGES, (2, 3), (1, 2), (1, 0), (2, 1))),
    (F.max_pool2d, (IMAGES, 2, 2, 0, 1, True)),
    (F.relu, (IMAGES,)),
    (F.relu6, (IMAGES,)),
    (F.hardtanh, (IMAGES,)),
    (F.hardswish, (IMAGES,)),
    (F.gelu, (IMAGES,)),
]


def test_every_answer_is_compared() -> None:
    assert {function for function, _ in CASES} == ANSWERS.keys()


@pytest.mark.parametrize(("function", "inputs"), CASES)
def test_an_answer_has_the_shape_and_the_type_of_torch_s_result(function, inputs) -> None:  # type: ignore[no-untyped-def]
    with torch.no_grad():
        computed = function(*inputs)
    on_meta = [moved(value) for value in inputs]
    with without_numbers():
        outlined = function(*on_meta)
    assert outlined.is_meta
    assert (outlined.shape, outlined.dtype) == (computed.shape, computed.dtype)


def moved(value: object) -> object:
    """Return tensors without numbers, and other values as they are."""
    if isinstance(value, Tensor):
        return value.to("meta")
    return [moved(part) for part in value] if isinstance(value, list) else value


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
