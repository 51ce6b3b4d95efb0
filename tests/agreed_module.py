"""A module of own methods and an own model that sites agree on by its hash, and lists without what it has added."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SOURCE = """
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from fedskew.methods import Classifier, Contribution, Method, Proximal, ServerMethod, TensorSpec, Upload, Variant


def small(shape, classes):
    return Classifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh()), nn.Linear(8, classes))


@dataclass(frozen=True)
class Heavier(Variant):
    name: ClassVar[str] = "NAME-heavier"
    factor: float = 2.0

    def loss_weights(self, client, logits_BC, labels_B):
        return self.factor * torch.ones_like(logits_BC[:, 0])


@dataclass(frozen=True)
class Sizes(Variant):
    name: ClassVar[str] = "NAME-sizes"

    def after(self, client, trained):
        return Contribution(upload={"counts": client.counts_C})

    @property
    def upload(self):
        return Upload("class-counts", self.tensors)

    def tensors(self, model, shared):
        return {"counts": TensorSpec(torch.float64, (model.head.out_features,))}


@dataclass(frozen=True)
class Mixed(ServerMethod):
    name: ClassVar[str] = "NAME-mixed"
    uses: ClassVar[str] = "NAME-sizes"
    share: float = 0.5

    def combine(self, server, state, updates):
        largest = max(updates, key=lambda update: float(update.uploads["NAME-sizes"]["counts"].max()))
        mixed = dict(largest.shared)
        for name in server.parameters:
            before = server.start[name]
            mixed[name] = before + self.share * (mixed[name] - before)
        return mixed, {}


PAIR = Method("pair", "half a step to the client of the largest class", "made up", "class counts",
              ("NAME-sizes",), "NAME-mixed", parts=(Sizes, Mixed))
"""


def source_of(name: str) -> str:
    """Return the source of the module of this name; its methods are named after it."""
    return SOURCE.replace("NAME", name)


@contextmanager
def added_methods_forgotten() -> Iterator[None]:
    """Take out of the lists of methods, at the end, what a module has added."""
    from client_app.variants import VARIANTS
    from server_app.methods import METHODS
    from strategies import SERVER_METHODS

    registries: list[Any] = [METHODS, VARIANTS, SERVER_METHODS]
    names = [set(registry) for registry in registries]
    yield
    for registry, before in zip(registries, names, strict=True):
        for added in set(registry) - before:
            del registry[added]
