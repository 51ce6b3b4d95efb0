"""Validation of clients' replies, before anything is computed with them: the only way from a site to the model.

A site is a stranger, and its reply may be anything. The rules stand in tables: METRICS and TENSORS here, what a method
takes in its `accepts`, and who may say what in exchange.py: a client is answered for by the node that was asked for it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from client_app.handlers import ClientReply
from client_app.optimizer import expected_coefficient_sum
from client_app.state import State
from client_app.training import steps_of
from data.agreement import MOST_SAMPLES
from strategies.core.server import Server, ServerMethod, Update

LARGEST = 1e10
"""Largest size of a value that a client may send: no training that succeeds comes near, and no sum of squares of such
values leaves float32."""
COUNT = 2**53
"""Largest number of steps and batches: up to it whole numbers are exact in float64."""


@dataclass(frozen=True)
class Range:
    """The rule for a number: finite, within a range, and integral if it counts something."""

    least: float
    most: float
    whole: bool = False

    def violation(self, values: Tensor) -> str:
        """Return what is wrong with the values, or an empty sentence."""
        if not values.numel():
            return ""
        least, most = values.aminmax()  # a NaN is both
        outside = self.outside(least.item(), most.item())
        if outside:
            return outside
        if self.whole and values.is_floating_point():
            fractional = values[values != values.round()]
            if fractional.numel():
                return f"is {fractional[0].item():g} and must be whole"
        return ""

    def breach_of(self, value: float) -> str:
        """Return the same of one number."""
        outside = self.outside(value, value)
        if outside:
            return outside
        if self.whole and value != int(value):
            return f"is {value:g} and must be whole"
        return ""

    def outside(self, least: float, most: float) -> str:
        """Return what is wrong with values from `least` to `most`, or an empty sentence."""
        if not (math.isfinite(least) and math.isfinite(most)):
            return "is not finite"
        allowed = f"must be {self.least:g} to {self.most:g}"
        if least < self.least:
            return f"is {least:g} and {allowed}"
        if most > self.most:
            return f"is {most:g} and {allowed}"
        return ""


SIGNED_LOSS = Range(-1e30, 1e30)
"""The range of the loss beside a variant whose terms have no lower bound."""
METRICS: Mapping[str, Range] = {
    "num-examples": Range(1, COUNT, whole=True),
    "loss": Range(0, 1e30),
    "steps": Range(1, COUNT, whole=True),
    "coefficient-sum": Range(0, COUNT),
    "remembers": Range(0, 1, whole=True),
    "seconds": Range(0, 1e7),
}
"""The numbers that every reply carries. num-examples is also the client's own (`Server.examples_by_client`), and steps
and coefficient-sum are those that so many samples make under the run's settings."""
TENSORS: Mapping[str, Range] = {
    "running_var": Range(0, LARGEST),
    "num_batches_tracked": Range(0, COUNT),
    "": Range(-LARGEST, LARGEST),
}
"""By the last part of a tensor's name; the empty one is for all others."""
Expected = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape and dtype by name."""


class RejectedUpdate(ValueError):
    """A client's answer that must not be combined; the message gives the reason."""


class UpdateOutOfRange(RejectedUpdate):
    """An answer with a NaN, an infinity or an impossibly large value, as of a client whose training diverged."""


def checked_update(
    client: int,
    answer: ClientReply,
    server: Server,
    expected: Expected,
    parts: Sequence[ServerMethod],
) -> Update:
    """Return a client's answer as an update. Raises RejectedUpdate for one that must not be combined."""
    if "model" not in answer.states:
        raise RejectedUpdate("the reply holds no model")
    shared = answer.states["model"]
    uploads = answer.named("upload")
    reason = differences(shared, expected)
    if reason:
        raise RejectedUpdate(f"model: {reason}")
    check_uploads(uploads, server, parts)
    for name, state in {"model": shared, **uploads}.items():
        check_values(state, f"{name}: ")
    examples = checked_metrics(client, answer.metrics, server)
    if answer.metrics["remembers"] and "memory" not in answer.digests:
        raise RejectedUpdate("the client remembers something and tells no digest of it")
    return Update(
        client=client,
        shared=shared,
        examples=examples,
        uploads=uploads,
        metrics=answer.metrics,
        digests=answer.digests,
    )


def checked_metrics(client: int, metrics: Mapping[str, float], server: Server) -> int:
    """Return the client's number of samples. Raises RejectedUpdate unless the metrics are what the client must send."""
    missing = METRICS.keys() - metrics.keys()
    if missing:
        raise RejectedUpdate(f"metric {min(missing)} is missing")
    signed = any(variant.requirements.signed_loss for variant in server.variants.values())
    for name, allowed in METRICS.items():
        if signed and name == "loss":
            allowed = SIGNED_LOSS
        reason = allowed.breach_of(metrics[name])
        if reason and name == "loss":  # as of a client whose training diverged
            raise UpdateOutOfRange(f"metric {name} {reason}")
        if reason:
            raise RejectedUpdate(f"metric {name} {reason}")

    examples = int(metrics["num-examples"])
    expected_examples = server.examples_by_client.get(client, examples)
    if examples != expected_examples:
        raise RejectedUpdate(f"num-examples is {examples}, and the client has {expected_examples}")
    check_samples(client, examples, "num-examples is", server)
    steps = int(metrics["steps"])
    due = steps_of(examples, server.training)
    if steps != due:
        raise RejectedUpdate(f"steps is {steps}, and {examples} samples make {due}")
    stated_sum = metrics["coefficient-sum"]
    pull = server.proximal_mu * server.training.rate(server.round)
    due_sum = expected_coefficient_sum(steps, server.training.coefficient_momentum, pull)
    if not math.isclose(stated_sum, due_sum, rel_tol=1e-6):
        raise RejectedUpdate(
            f"coefficient-sum is {stated_sum:g}, and {steps} steps make {due_sum:g}"
        )
    return examples


def check_samples(client: int, samples: int, stated: str, server: Server) -> None:
    """Raise RejectedUpdate where a client states more training samples than it may.

    Samples are weights: a site that says 320,000,000 for 320 owns the mean of the models, and nothing else about its
    update looks wrong. `stated` begins the sentence, such as "num-examples is".
    """
    if samples > MOST_SAMPLES:
        raise RejectedUpdate(f"{stated} {samples}, and a client has at most {MOST_SAMPLES}")
    if client < len(server.sites):
        site = server.sites[client]
        if site.samples and samples > site.samples:
            raise RejectedUpdate(
                f"{stated} {samples}, and federation.toml agrees on at most {site.samples} "
                f"training samples of site {site.name}"
            )


def check_values(state: State, where: str = "") -> None:
    """Raise RejectedUpdate for a tensor whose values are not finite or outside the range for its name."""
    usual = {}
    others = {}
    for name, tensor in state.items():
        is_usual = tensor.is_floating_point() and range_of(name) is TENSORS[""]
        if is_usual and tensor.numel():
            usual[name] = tensor
        else:
            others[name] = tensor
    # No value is larger than the Euclidean norm, which is computed at a twentieth of the largest value's time.
    norms = torch._foreach_norm(list(usual.values())) if usual else []
    in_range = all(norm.item() <= LARGEST for norm in norms)
    for name, tensor in (others if in_range else state).items():
        reason = range_of(name).violation(tensor)
        if reason:
            raise UpdateOutOfRange(f"{where}{name} {reason}")


@lru_cache(maxsize=4096)
def range_of(name: str) -> Range:
    """Return the range for a tensor's values, by the last part of its name."""
    _, _, last = name.rpartition(".")
    return TENSORS.get(last, TENSORS[""])


def check_by_class(upload: State, classes: int, rows: Expected) -> None:
    """Raise RejectedUpdate unless `upload` is {"classes": (n,) int64 ascending} and n rows of each of `rows`."""
    held = upload.get("classes", torch.empty(0))
    number = held.numel()
    expected: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    expected["classes"] = ((number,), torch.int64)
    for name, (shape, dtype) in rows.items():
        expected[name] = ((number, *shape), dtype)
    reason = differences(upload, expected)
    if reason:
        raise RejectedUpdate(reason)

    if number == 0:
        return
    in_range = held.min() >= 0 and held.max() < classes
    ascending = (held.diff() > 0).all()
    if not (in_range and ascending):
        raise RejectedUpdate(f"classes are not ascending numbers from 0 to {classes - 1}")


def check_uploads(
    uploads: Mapping[str, State], server: Server, parts: Sequence[ServerMethod]
) -> None:
    """Raise RejectedUpdate unless every part finds the upload it needs, as it needs it, and no upload is left over."""
    consuming = [part for part in parts if part.consumes]
    for part in consuming:
        if part.consumes not in uploads:
            raise RejectedUpdate(f"upload {part.consumes} is missing")
        try:
            part.accepts(server, uploads[part.consumes])
        except RejectedUpdate as reason:
            raise RejectedUpdate(f"upload {part.consumes}: {reason}") from None
    unknown = uploads.keys() - {part.consumes for part in consuming}
    if unknown:
        takers = " or ".join(part.name for part in parts)
        raise RejectedUpdate(f"upload {ascii(min(unknown))[:80]} is not one that {takers} takes")


def check_answer(answer: State, server: Server, part: ServerMethod) -> None:
    """Raise RejectedUpdate unless `answer` to the part's final question is as the part needs it."""
    part.accepts(server, answer)
    check_values(answer)


def differences(state: State, expected: Expected) -> str:
    """Return the first way in which the state's names, shapes or dtypes are not the expected ones; empty when none."""
    missing = expected.keys() - state.keys()
    if missing:
        return f"{min(missing)} is missing"
    extra = state.keys() - expected.keys()
    if extra:
        return f"{ascii(min(extra))[:80]} is not expected"
    for name, (shape, dtype) in expected.items():
        sent = state[name]
        sent_shape = tuple(sent.shape)
        if sent_shape != shape or sent.dtype != dtype:
            found = described(sent_shape, sent.dtype)
            return f"{name} is {found}, not {described(shape, dtype)}"
    return ""


def described(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    """Return e.g. float32 of 10x64."""
    sides = "x".join(map(str, shape[:8]))
    name = str(dtype).removeprefix("torch.")
    return f"{name} of {sides or 'one value'}"


def not_finite(state: State) -> str:
    """Return the name of a tensor with a NaN or an infinity; empty when all are finite."""
    for name, tensor in state.items():
        # A sum is finite only if every term is; one that overflows is looked at value by value.
        if not tensor.is_floating_point() or torch.isfinite(tensor.sum()):
            continue
        if not torch.isfinite(tensor).all():
            return name
    return ""


def expected_of(state: State) -> Expected:
    """Return the shape and dtype of every tensor."""
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in state.items()}
