"""Strict reading and validation of clients' replies. Every reply passes it before anything is computed from it.

Clients are not trusted: a reply may contain anything. METRICS and TENSORS are the rules for numbers and tensors,
`Upload.tensors` and `Upload.validate` those for a method's upload, and exchange.py checks that the reply comes from
the node that was asked for this client.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from flwr.app import ConfigRecord

from client_app.client import LARGEST_VALUE, InvalidReply, TensorSpec, Upload, check_numbers
from client_app.handlers import ClientFailure, ClientReply
from client_app.messages import unpack
from client_app.optimizer import expected_coefficient_sum
from client_app.serialization import Expected
from client_app.state import State
from client_app.training import steps_of
from data.agreement import MOST_SAMPLES
from data.text import printable
from strategies.core.server import Server, ServerMethod, Update

SHA256 = re.compile(r"[0-9a-f]{64}")
DIGESTS = ("memory", "data")
"""What a client sends a digest of."""

MOST_RECORDS = 100
"""Records of a reply: the model, an upload of each variant, scores of each deployed model on each test set."""
MAX_COUNT = 2**53
"""Largest count of samples, steps or batches: float64 represents all integers up to it exactly."""


@dataclass(frozen=True)
class Range:
    """The rule for a number: finite, from `least` to `most`, and an integer if `whole`."""

    least: float
    most: float
    whole: bool = False

    def violation(self, smallest: float, largest: float) -> str:
        """Return what is wrong with values from `smallest` to `largest`, such as "is 7 and must be 0 to 1"; "" if
        nothing is."""
        if not (math.isfinite(smallest) and math.isfinite(largest)):
            return "is not finite"
        wrong = smallest if smallest < self.least else largest
        if not self.least <= wrong <= self.most:
            return f"is {wrong:g} and must be {self.least:g} to {self.most:g}"
        if self.whole and smallest != int(smallest):
            return f"is {smallest:g} and must be whole"
        return ""


SIGNED_LOSS = Range(-1e30, 1e30)
"""The range of the loss if a variant has the need signed-loss: its loss term has no lower bound."""
METRICS: Mapping[str, Range] = {
    "num-examples": Range(1, MAX_COUNT, whole=True),
    "loss": Range(0, 1e30),
    "steps": Range(1, MAX_COUNT, whole=True),
    "coefficient-sum": Range(0, MAX_COUNT),
    "seconds": Range(0, 1e7),
}
"""The numbers in every reply to a request to train, and their ranges.

`checked_metrics` also compares num-examples with `Server.examples_by_client`, and steps and coefficient-sum with the
values that follow from num-examples and the run's settings.
"""
TENSORS: Mapping[str, tuple[float, float]] = {
    "running_var": (0, LARGEST_VALUE),
    "num_batches_tracked": (0, MAX_COUNT),
}
"""Ranges of a model's tensors, by the last part of their names; all others are within LARGEST_VALUE."""


class RejectedUpdate(ValueError):
    """A client's answer that must not be combined; the message gives the reason."""


class UpdateOutOfRange(RejectedUpdate):
    """An answer with a NaN, an infinity or an impossibly large value. The client's training has probably diverged."""


def read(parts: Mapping[str, object], largest: Expected | None) -> ClientReply:
    """Return one client's records, each of at most `largest`, as an answer."""
    if len(parts) > MOST_RECORDS:
        raise ValueError(f"{len(parts)} records arrived, and at most {MOST_RECORDS} are expected")
    states = {}
    metrics: dict[str, float] = {}
    worker: dict[str, int | str] = {}
    digests: dict[str, str] = {}
    for name, record in parts.items():
        if name == "metrics":
            metrics = {key: number(key, value) for key, value in dict(record).items()}  # type: ignore[call-overload]
        elif name == "worker" and isinstance(record, ConfigRecord):
            worker = worker_in(record)
        elif name == "digests" and isinstance(record, ConfigRecord):
            digests = {kind: digest_of(record[kind]) for kind in DIGESTS if kind in record}
        else:
            states[name] = unpack(record, largest)
    return ClientReply(states, metrics, worker, digests)


def worker_in(record: ConfigRecord) -> dict[str, int | str]:
    """Return what a client says of its process, as far as a record of the round can hold it."""
    worker: dict[str, int | str] = {}
    for key in ("process", "device", "gpu"):
        value = record.get(key, "")
        if isinstance(value, int) and abs(value) >= 2**63:  # Python does not print the longest
            raise ValueError("worker: has a number of more than 63 bits")
        if value != "":
            worker[key] = value if isinstance(value, int) else printable(value)
    return worker


def failure_in(record: ConfigRecord) -> ClientFailure:
    """Return what a client reports instead of an answer. Whatever it sends, this raises nothing."""
    number = record.get("number", 0)
    if type(number) is not int or not 0 <= number < 2**63:
        number = 0
    return ClientFailure(
        reason=printable(record.get("reason", "no reason given")),
        kind=printable(record.get("kind", "")),
        permission=printable(record.get("permission", "")),
        number=number,
    )


def digest_of(code: object) -> str:
    """Return a sha256. Raises ValueError for what is none."""
    if not isinstance(code, str) or not SHA256.fullmatch(code):
        raise ValueError("a digest is no sha256")
    return code


def number(key: str, value: object) -> float:
    """Return a metric as a float. Raises TypeError for what is none, as a list or a truth value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"metric {key} is {type(value).__name__}, not a number")
    return float(value)


def checked_update(
    client: int,
    answer: ClientReply,
    server: Server,
    expected: Mapping[str, TensorSpec],
    parts: Sequence[ServerMethod],
) -> Update:
    """Return a client's answer as an update, after checking everything in it.

    Args:
        client: the client's number.
        answer: its reply to the request to train.
        server: the round's settings and the known numbers of samples.
        expected: shapes and dtypes of the shared weights.
        parts: the run's server methods, which check their uploads.

    Raises:
        RejectedUpdate: the answer must not be combined; UpdateOutOfRange if a value is too large or not finite.
    """
    if "model" not in answer.states:
        raise RejectedUpdate("the reply holds no model")
    shared = answer.states["model"]
    uploads = answer.named("upload")
    try:
        check_tensors(shared, expected)
    except RejectedUpdate as reason:
        raise type(reason)(f"model: {reason}") from None
    check_uploads(uploads, server, parts)
    examples = checked_metrics(client, answer.metrics, server)
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
    signed = any("signed-loss" in variant.needs for variant in server.variants.values())
    ranges = {**METRICS, "loss": SIGNED_LOSS} if signed else METRICS
    for name, allowed in ranges.items():
        reason = allowed.violation(metrics[name], metrics[name])
        if reason:  # beyond the loss's range, the client's training has probably diverged
            error = UpdateOutOfRange if name == "loss" else RejectedUpdate
            raise error(f"metric {name} {reason}")
    check_method_numbers({name: metrics[name] for name in metrics.keys() - METRICS.keys()}, server)

    examples = int(metrics["num-examples"])
    expected_examples = server.examples_by_client.get(client, examples)
    if examples != expected_examples:
        raise RejectedUpdate(f"num-examples is {examples}, and the client has {expected_examples}")
    check_samples(client, examples, "num-examples is", server)
    steps = int(metrics["steps"])
    due = steps_of(examples, server.training)
    if steps != due:
        raise RejectedUpdate(f"steps is {steps}, and {examples} samples make {due}")
    sent_sum = metrics["coefficient-sum"]
    pull = server.proximal_mu * server.training.rate(server.round)
    due_sum = expected_coefficient_sum(steps, server.training.coefficient_momentum, pull)
    if not math.isclose(sent_sum, due_sum, rel_tol=1e-6):
        raise RejectedUpdate(f"coefficient-sum is {sent_sum:g}, and {steps} steps make {due_sum:g}")
    return examples


def check_method_numbers(numbers: Mapping[str, float], server: Server) -> None:
    """Raise RejectedUpdate unless the numbers beside METRICS can be those of the run's variants, by VARIANT/NAME."""
    try:
        check_numbers(numbers)
    except InvalidReply as reason:
        raise RejectedUpdate(str(reason)) from None
    for name in sorted(numbers):
        variant, _, _ = name.partition("/")
        if variant not in server.variants:
            raise RejectedUpdate(f"number {name} is of {variant}, which is no variant of the run")


def check_samples(client: int, samples: int, subject: str, server: Server) -> None:
    """Raise RejectedUpdate if a client claims more training samples than MOST_SAMPLES or than federation.toml allows.

    The mean of the models is weighted by samples. A site that claims 320,000,000 in place of 320 would determine it
    alone, and no other check would notice. `subject` begins the error's sentence, such as "num-examples is".
    """
    if samples > MOST_SAMPLES:
        raise RejectedUpdate(f"{subject} {samples}, and a client has at most {MOST_SAMPLES}")
    if client < len(server.sites):
        site = server.sites[client]
        if site.samples and samples > site.samples:
            raise RejectedUpdate(
                f"{subject} {samples}, and federation.toml agrees on at most {site.samples} "
                f"training samples of site {site.name}"
            )


def check_tensors(state: State, specs: Mapping[str, TensorSpec]) -> None:
    """Raise RejectedUpdate unless a client's tensors are what they must be, UpdateOutOfRange for a wrong value."""
    reason = differences(state, specs)
    if reason:
        raise RejectedUpdate(reason)
    usual = {}
    for name, tensor in state.items():
        has_usual_range = specs[name].low == -LARGEST_VALUE and specs[name].high == LARGEST_VALUE
        if has_usual_range and tensor.is_floating_point() and tensor.numel():
            usual[name] = tensor
    # A tensor's Euclidean norm bounds its absolute values, and takes a twentieth of the time of `aminmax`. Only if a
    # norm is too large, or NaN, are the tensors checked value by value.
    norms = torch._foreach_norm(list(usual.values())) if usual else []
    in_range = all(norm.item() <= LARGEST_VALUE for norm in norms)
    for name, tensor in state.items():
        if not tensor.numel() or (in_range and name in usual):
            continue
        smallest, largest = tensor.aminmax()  # with a NaN among the values, both are NaN
        allowed = Range(specs[name].low, specs[name].high)
        reason = allowed.violation(smallest.item(), largest.item())
        if reason:
            error = UpdateOutOfRange if tensor.is_floating_point() else RejectedUpdate
            raise error(f"{name} {reason}")


def check_uploads(
    uploads: Mapping[str, State], server: Server, parts: Sequence[ServerMethod]
) -> None:
    """Raise RejectedUpdate if an upload that a part uses is missing or invalid, or one is used by no part."""
    used = {part.uses for part in parts if part.uses}
    due = {name for name in used if not server.variants[name].upload.question}
    for name in sorted(due):
        if name not in uploads:
            raise RejectedUpdate(f"upload {name} is missing")
        try:
            check_upload(server.variants[name].upload, uploads[name], server)
        except RejectedUpdate as reason:
            raise type(reason)(f"upload {name}: {reason}") from None
    unknown = uploads.keys() - due
    if unknown:
        takers = " or ".join(part.name for part in parts)
        raise RejectedUpdate(f"upload {ascii(min(unknown))[:80]} is not one that {takers} takes")


def check_upload(upload: Upload, state: State, server: Server, samples: int | None = None) -> int:
    """Return how many samples a client's upload describes, 0 if it does not say, after checking it.

    Args:
        upload: what the variant says of it.
        state: the client's tensors.
        server: has the model and the shared weights, whose shapes the tensors follow.
        samples: the client's training samples; None if the server does not know them, or of a sum over clients.

    Raises:
        RejectedUpdate: a tensor has another name, shape or dtype, or the variant's own check finds an error;
            UpdateOutOfRange for a value outside its range.
    """
    specs = dict(upload.tensors(server.model, server.start))
    classes = server.model.head.out_features
    if upload.by_class:
        number = state.get("classes", torch.empty(0)).numel()
        for name, spec in specs.items():
            specs[name] = spec._replace(shape=(number, *spec.shape))
        specs["classes"] = TensorSpec(torch.int64, (number,), 0, classes - 1)
    check_tensors(state, specs)
    if upload.by_class and (state["classes"].diff() <= 0).any():
        raise RejectedUpdate("classes are not ascending")
    try:
        return upload.validate(state, classes, samples)
    except InvalidReply as error:
        raise RejectedUpdate(str(error)) from None


def differences(state: State, specs: Mapping[str, TensorSpec]) -> str:
    """Return the first difference of the state's names, shapes or dtypes from those of `specs`; "" if none differs."""
    missing = specs.keys() - state.keys()
    if missing:
        return f"{min(missing)} is missing"
    extra = state.keys() - specs.keys()
    if extra:
        return f"{ascii(min(extra))[:80]} is not expected"
    for name, spec in specs.items():
        tensor = state[name]
        if (tensor.shape, tensor.dtype) != (spec.shape, spec.dtype):
            found = described(tuple(tensor.shape), tensor.dtype)
            return f"{name} is {found}, not {described(spec.shape, spec.dtype)}"
    return ""


def described(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    """Return a shape and dtype as text, such as "float32 of 10x64"."""
    sides = "x".join(map(str, shape[:8]))
    name = str(dtype).removeprefix("torch.")
    return f"{name} of {sides or 'one value'}"


def not_finite(state: State) -> str:
    """Return the name of the first tensor with a NaN or an infinity; "" if all values are finite."""
    for name, tensor in state.items():
        # A finite sum has only finite terms, and is fast. An infinite sum may be an overflow of finite terms, so the
        # values are then checked one by one.
        if not tensor.is_floating_point() or torch.isfinite(tensor.sum()):
            continue
        if not torch.isfinite(tensor).all():
            return name
    return ""


def expected_of(state: State) -> dict[str, TensorSpec]:
    """Return what every tensor of a model like this one must be, by name."""
    specs = {}
    for name, tensor in state.items():
        spec = TensorSpec(tensor.dtype, tuple(tensor.shape))
        _, _, last = name.rpartition(".")
        if last in TENSORS:
            low, high = TENSORS[last]
            spec = spec._replace(low=low, high=high)
        specs[name] = spec
    return specs
