"""The server's steps that compute, beside their matrix products alone.

CReFF with d = 256 and m = 100 features a class, I = 100, J = 300 (fewer at 100 classes, where its steps are long).
FedDF with McMahan's CNN, four teachers, 20 steps of 128 images: the networks' passes are its products.
"""

from collections.abc import Iterator

import torch

from benchmarks.figures import Row, alternate, figure, seconds
from client_app.models import Classifier, build
from client_app.optimizer import TrainingSettings
from client_app.process import tune_allocator
from client_app.state import State
from data import Samples
from strategies.core.server import Server, Update
from strategies.creff import CReFF
from strategies.feddf import FedDF

WIDTH, GOAL = 256, 1.5
CREFF = {10: CReFF(), 100: CReFF(feature_steps=5, head_steps=15)}
"""By classes."""
TEACHERS, HOLDOUT = 4, 256
DISTILL = FedDF(steps=20)


def creff_products(method: CReFF, features_CMD: torch.Tensor, weight_CD: torch.Tensor) -> None:
    """Do the matrix products of one server step and nothing else.

    A feature step needs five: the logits, the gradient, and for its slope one through each factor of the gradient and
    one through the logits; a step of the head needs two.
    """
    errors_CMC, inputs_ND = features_CMD @ weight_CD.T, features_CMD.reshape(-1, WIDTH)
    errors_NC = errors_CMC.reshape(-1, len(weight_CD))
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


def creff(classes: int) -> tuple[list[float], list[float]]:
    """Return the seconds of the step and of its products."""
    method = CREFF[classes]
    model = Classifier(torch.nn.Flatten(), torch.nn.Linear(WIDTH, classes))
    shared = model.state_dict()
    server = Server(model, shared, clients=10, round=1, seed=0, training=TrainingSettings())
    state = method.initial_state(server)
    upload = {"classes": torch.arange(classes), "gradients": torch.randn(classes, classes, WIDTH)}
    updates = [Update(0, shared, 100, {method.consumes: upload})]
    step, products = alternate(
        lambda: method.deploy(server, state, shared, updates),
        lambda: creff_products(method, state["features"], state["weight"]),
    )
    return step, products


def feddf() -> tuple[list[float], list[float]]:
    """Return the seconds of the step and of the networks' passes."""
    model = build("mcmahan-cnn", (1, 28, 28), 10, 0)
    labels_N = torch.arange(HOLDOUT) % 10
    samples = Samples(torch.randn(HOLDOUT, 1, 28, 28), labels_N, torch.zeros(1), torch.ones(1))
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    server = Server(
        model, start, clients=TEACHERS, round=1, seed=0, training=TrainingSettings(), holdout=samples,
        parameters=frozenset(model.trained),
    )  # fmt: skip
    updates = [Update(number, start, 100) for number in range(TEACHERS)]

    def passes(state: State) -> None:
        model.eval()
        with torch.no_grad():
            for _ in range(TEACHERS):
                for indices_B in torch.arange(HOLDOUT).split(64):
                    model(samples.batch(indices_B))
        model.train()
        for _ in range(DISTILL.steps):
            outputs_BC = model(samples.batch(torch.arange(DISTILL.batch_size)))
            torch.autograd.grad(outputs_BC.sum(), list(model.trained.values()))

    step, products = alternate(lambda: DISTILL.combine(server, {}, updates), lambda: passes(start))
    return step, products


def rows() -> Iterator[Row]:
    """Yield the figures."""
    tune_allocator()  # as the process of a run's server does
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for classes in CREFF:
        step, products = creff(classes)
        yield figure(
            f"CReFF's server step, {classes} classes / its matrix products",
            step,
            products,
            GOAL,
        )
        yield seconds(f"CReFF's server step, {classes} classes", step)
    step, products = feddf()
    yield figure("FedDF's server step / its passes through the network", step, products, GOAL)
    yield seconds("FedDF's server step", step)
