"""What local training takes on a GPU: bfloat16 beside float32, and clients together beside one by one.

    python -m benchmarks.gpu

Prints JSON rows, as the suite; where there is no GPU it says so and ends with status 0. A client has 20 samples of 8x8
with small-cnn, or 256 of 32x32 with ResNet-8, and one epoch of SGD.
"""

import json
from collections.abc import Callable, Iterator

import torch

from benchmarks.figures import Row, alternate, figure, seconds
from client_app.client import Client
from client_app.models import build
from client_app.optimizer import TrainingSettings
from client_app.process import make_deterministic
from client_app.state import copy
from client_app.training import train_round
from client_app.vectorized import VectorizedTraining
from data import Samples

KINDS = {
    "small-cnn": (64, 20, (1, 8, 8)),
    "mcmahan-cnn": (32, 100, (1, 28, 28)),
    "resnet-8": (8, 256, (3, 32, 32)),
}
"""By model: clients, samples of each, their shape."""


def clients_of(name: str, device: str) -> list[Client]:
    """Return clients with random images, all on the device."""
    number, size, shape = KINDS[name]
    model, draws = build(name, shape, 10, 0).to(device), torch.Generator().manual_seed(0)
    mean, labels_N = (
        torch.zeros(shape[0], 1, 1, device=device),
        torch.arange(size, device=device) % 10,
    )
    images = [
        torch.randint(256, (size, *shape), generator=draws).byte().to(device) for _ in range(number)
    ]
    start = copy(model.state_dict())
    return [
        Client(k, model, Samples(x, labels_N, mean, mean + 1), 10, start=start)
        for k, x in enumerate(images)
    ]


def rounds_of(name: str, device: str) -> dict[str, Callable[[], None]]:
    """Return what is measured, by name: every client's training in a round."""
    clients, shape = clients_of(name, device), KINDS[name][2]

    def single(precision: str) -> Callable[[], None]:
        settings = TrainingSettings(local_epochs=1, precision=precision)

        def one_round() -> None:
            for client in clients:
                client.model.load_state_dict(client.start)
                train_round(client, [], settings)

        return one_round

    settings = TrainingSettings(local_epochs=1, clients_per_pass=len(clients))
    together = VectorizedTraining(
        clients[0].model,
        shape,
        [],
        settings,
        lambda client: client.start,
    )

    def stacked() -> None:
        assert all(not isinstance(report, Exception) for _, report, _ in together.train(clients))

    return {"float32": single("float32"), "bfloat16": single("bfloat16"), "together": stacked}


def rows(device: str = "cuda") -> Iterator[Row]:
    """Yield the figures; none where there is no GPU."""
    if device == "cuda" and not torch.cuda.is_available():
        return
    make_deterministic()
    for name, (number, size, _) in KINDS.items():
        actions = rounds_of(name, device)
        times = dict(zip(actions, alternate(*map(synchronized, actions.values())), strict=True))
        what = f"{name}, {number} clients of {size} samples"
        yield figure(f"{what}: bfloat16 / float32, one by one", times["bfloat16"], times["float32"])
        yield figure(f"{what}: together / one by one", times["together"], times["float32"])
        yield seconds(f"{what}, one by one", times["float32"])


def synchronized(action: Callable[[], None]) -> Callable[[], None]:
    """Return the action that ends when the GPU has done its part."""

    def one_round() -> None:
        action()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return one_round


def main() -> None:
    """Print the rows as they come."""
    if not torch.cuda.is_available():
        print("This machine has no GPU that torch sees: nothing was measured.")
    for row in rows():
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
