"""What a client's answer must be before it may be combined: the only gate between a site and the model."""

import math
from collections.abc import Mapping, Sequence

import torch

from client_app.state import State
from strategies.exchange import Answer
from strategies.server import Server, ServerMethod, Update

NUMBERS = {"loss", "steps", "coefficient-sum", "remembers", "seconds", "num-examples"}
"""The metrics that every reply carries."""
Expected = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape and dtype by name."""


class Refused(ValueError):
    """An answer that must not be combined; the message says why."""


def checked_update(
    client: int, answer: Answer, server: Server, expected: Expected, parts: Sequence[ServerMethod]
) -> Update:
    """Return a client's answer as an update. Raises Refused for one that must not be combined."""
    if "model" not in answer.states:
        raise Refused("the reply holds no model")
    shared, uploads = answer.states["model"], answer.named("upload")
    if reason := differences(shared, expected):
        raise Refused(f"model: {reason}")
    check_uploads(uploads, server, parts)
    for name, state in {"model": shared, **uploads}.items():
        if tensor := not_finite(state):
            raise Refused(f"{name}: {tensor} is not finite")
    if missing := NUMBERS - answer.metrics.keys():
        raise Refused(f"metric {min(missing)} is missing")
    examples = answer.metrics["num-examples"]
    if not (0 < examples < math.inf and examples == int(examples)):
        raise Refused(f"num-examples is {examples:g}")
    if not all(math.isfinite(answer.metrics[name]) for name in NUMBERS):
        raise Refused("a metric is not finite")
    for name in ("steps", "coefficient-sum"):
        if answer.metrics[name] <= 0:
            raise Refused(f"{name} is {answer.metrics[name]:g}")
    return Update(client, shared, int(examples), uploads, answer.metrics)


def check_by_class(upload: State, classes: int, rows: Expected) -> None:
    """Raise Refused unless `upload` holds {"classes": (n,) int64 ascending} and n rows of every tensor of `rows`."""
    held = upload.get("classes", torch.empty(0))
    by_class = {"classes": ((), torch.int64), **rows}
    if reason := differences(upload, {name: ((len(held), *shape), dtype) for name, (shape, dtype) in by_class.items()}):
        raise Refused(reason)
    if held.numel() and (held.min() < 0 or held.max() >= classes or (held.diff() <= 0).any()):
        raise Refused(f"classes are {held.tolist()}, not ascending numbers below {classes}")


def check_uploads(uploads: Mapping[str, State], server: Server, parts: Sequence[ServerMethod]) -> None:
    """Raise Refused unless every part finds the upload it needs, as it needs it, and no upload is left over."""
    consuming = [part for part in parts if part.consumes]
    for part in consuming:
        if part.consumes not in uploads:
            raise Refused(f"upload {part.consumes} is missing")
        try:
            part.accepts(server, uploads[part.consumes])
        except Refused as reason:
            raise Refused(f"upload {part.consumes}: {reason}") from None
    if unknown := uploads.keys() - {part.consumes for part in consuming}:
        raise Refused(f"upload {min(unknown)} is not one that {' or '.join(part.name for part in parts)} takes")


def check_answer(answer: State, server: Server, part: ServerMethod) -> None:
    """Raise Refused unless `answer` to the part's final question is as the part needs it."""
    part.accepts(server, answer)
    if tensor := not_finite(answer):
        raise Refused(f"{tensor} is not finite")


def differences(state: State, expected: Expected) -> str:
    """Return the first way in which the state's names, shapes or dtypes are not the expected ones; empty when none."""
    if missing := expected.keys() - state.keys():
        return f"{min(missing)} is missing"
    if extra := state.keys() - expected.keys():
        return f"{min(extra)} is not expected"
    for name, (shape, dtype) in expected.items():
        if tuple(state[name].shape) != shape or state[name].dtype != dtype:
            return f"{name} is {described(tuple(state[name].shape), state[name].dtype)}, not {described(shape, dtype)}"
    return ""


def described(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    """Return e.g. float32 of 10x64."""
    return f"{str(dtype).removeprefix('torch.')} of {'x'.join(map(str, shape)) or 'one value'}"


def not_finite(state: State) -> str:
    """Return the name of a tensor with a NaN or an infinity; empty when all are finite."""
    # A sum is finite only if every term is; one that overflows is looked at value by value.
    suspects = (n for n, t in state.items() if t.is_floating_point() and not torch.isfinite(t.sum()))
    return next((name for name in suspects if not torch.isfinite(state[name]).all()), "")


def expected_of(state: State) -> Expected:
    """Return the shape and dtype of every tensor."""
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in state.items()}
