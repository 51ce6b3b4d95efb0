"""CReFF's server step beside its matrix products alone (C = 10, d = 256, m = 100, I = 100, J = 300), interleaved.

python benchmarks/creff.py [--repeats 5]
"""

import argparse
import json
import os
import statistics
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

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


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    torch.manual_seed(0)
    method = CReFF()
    model = Classifier(torch.nn.Flatten(), torch.nn.Linear(WIDTH, CLASSES))
    shared = model.state_dict()
    server = Server(model, shared, clients=10, round=1, seed=0, training=TrainingSettings())
    state = method.initial_state(server)
    gradients = torch.randn(CLASSES, CLASSES, WIDTH)
    upload = {"classes": torch.arange(CLASSES), "gradients": gradients}
    updates = [Update(0, shared, 100, {method.consumes: upload})]
    whole, alone = [], []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        method.deploy(server, state, shared, updates)
        middle = time.perf_counter()
        products(method, state["features"], state["weight"])
        whole.append(middle - began)
        alone.append(time.perf_counter() - middle)
    step, floor = statistics.median(whole[1:]), statistics.median(alone[1:])
    print(
        json.dumps({"name": "CReFF server step / its matrix products", "ratio": round(step / floor, 2), "goal": None})
    )
    print(json.dumps({"name": "CReFF server step", "seconds": round(step, 4)}))
    print(json.dumps({"name": "CReFF matrix products alone", "seconds": round(floor, 4)}))


if __name__ == "__main__":
    main()
