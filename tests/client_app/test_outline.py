"""Networks on the meta device have the shapes of the real ones, without torch's compiler."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.models import build
from client_app.models.outline import without_numbers

WEIGHT = (6, 4, 3, 3)
ANSWERS: list[tuple[Callable[..., Tensor], Any]] = [
    (torch.add, [(9, 1)]),
    (Tensor.add_, [(8,)]),
    (F.adaptive_avg_pool2d, [3]),
    (F.adaptive_avg_pool2d, [[None, 1]]),
    (F.conv2d, [WEIGHT, None, 2, 1]),
    (F.conv2d, [WEIGHT, None, [1, 2], [2, 0], [2, 1]]),
    (F.conv2d, [WEIGHT, None, 1, "same"]),
    (F.linear, [(5, 8)]),
    (F.max_pool2d, [3, 2, 1]),
    (F.max_pool2d, [[2, 3], [1, 2], [1, 0], [2, 1]]),
    (F.max_pool2d, [2, 2, 0, 1, True]),
]
"""Functions of images (2, 4, 9, 8); a tuple is the shape of another tensor."""


@pytest.mark.parametrize(("function", "others"), ANSWERS)
def test_an_answer_has_the_shape_of_torch_s_result(
    function: Callable[..., Tensor], others: list[Any]
) -> None:
    def result(device: str) -> Tensor:
        def given(value: Any) -> Any:
            return torch.zeros(value, device=device) if isinstance(value, tuple) else value

        return function(*map(given, [(2, 4, 9, 8), *others]))

    computed = result("cpu")
    with without_numbers():
        outlined = result("meta")
    assert outlined.is_meta and outlined.shape == computed.shape


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
