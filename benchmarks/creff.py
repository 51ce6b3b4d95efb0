"""CReFF's server step beside its matrix products alone (C = 10, d = 256, m = 100, I = 100, J = 300), interleaved."""

from collections.abc import Iterator

import torch

from benchmarks.figures import Row, alternate, figure, seconds
from client_app.models import Classifier
from client_app.optimizer import TrainingSettings
from strategies.creff import CReFF
from strategies.server import Server, Update

CLASSES, WIDTH = 10, 256


def products(method: CReFF, features_CMD: torch.Tensor, weight_CD: torch.Tensor) -> None:
    """Do the matrix products of one server step and nothing else.

    A feature step needs five: the logits, the gradient, and for its slope one through each factor of the gradient and
    one through the logits; a step of the head needs two.
    """
    errors_CMC, inputs_ND = features_CMD @ weight_CD.T, features_CMD.reshape(-1, WIDTH)
    errors_NC = errors_CMC.reshape(-1, CLASSES)
    slope_CCD = errors_CMC.transpose(1, 2) @ features_CMD
    for _ in range(method.feature_steps):
        features_CMD @ weight_CD.T
        errors_CMC.transpose(1, 2) @ features_CMD
        features_CMD @ slope_CCD.transpose(1, 2)
        errors_CMC @ slope_CCD
        errors_CMC @ weight_CD
    for _ in range(method.head_steps):
        inputs_ND @ weight_CD.T
        errors_NC.T @ inputs_ND


def rows() -> Iterator[Row]:
    """Yield the figures."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    method = CReFF()
    model = Classifier(torch.nn.Flatten(), torch.nn.Linear(WIDTH, CLASSES))
    shared = model.state_dict()
    server = Server(model, shared, clients=10, round=1, seed=0, training=TrainingSettings())
    state = method.initial_state(server)
    upload = {"classes": torch.arange(CLASSES), "gradients": torch.randn(CLASSES, CLASSES, WIDTH)}
    updates = [Update(0, shared, 100, {method.consumes: upload})]
    step, floor = alternate(
        lambda: method.deploy(server, state, shared, updates),
        lambda: products(method, state["features"], state["weight"]),
    )
    yield figure("CReFF's server step / its matrix products", step, floor)
    yield seconds("CReFF's server step", step)
