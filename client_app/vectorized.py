"""Clients together: what `training.train_round` does to one client, done to K of them stacked.

The pass through the model, the variants' weights of losses and their offsets of gradients are mapped over the clients
by torch.vmap. All else, batches, draws of augmentation, `before`, `after` and reports, is made client by client, by the
very code that trains one.
"""

import logging
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pad_sequence

from client_app.client import Client, Report, Variant, overrides
from client_app.models.classifier import Classifier, channels_go_last, functional_parts
from client_app.optimizer import TrainingSettings, clip
from client_app.state import State, copy, size, split_prefix
from client_app.training import Task, batches, task_of
from data import Samples
from data.text import sentence

log = logging.getLogger("fedskew")
SHORT_STEP = 2**22
"""Multiplications of a batch's pass through a model up to which a client's step is shorter than starting it: a core
does them, and twice as many backwards, in about the half millisecond that Python takes for a step.

Measured on one core: ten clients in a pass take 0.35 to 0.66 of the time up to 2.9 million, 1.3 to 3 times as long from
24 million on.
"""
MOST_FITTING, FITTING_BYTES = 64, 2**30
"""Clients that clients-per-pass = 0 stacks at most, and bytes of their weights, gradients, velocities and start."""
COUNTS = ("counts_C", "effective_prior_C", "drawn_C")
"""What a variant may ask of a client's labels while several train."""


@dataclass(frozen=True)
class LabelsInPass:
    """A batch's labels, in place of a client's samples while several train: a pass has no samples to count."""

    labels_N: Tensor | None
    """(B,): a pass numbers the samples of its batch 0 to B - 1."""


class VectorizedTraining:
    """Trains clients of one process in passes, up to clients-per-pass of them in each."""

    def __init__(
        self,
        model: Classifier,
        shape: tuple[int, ...],
        variants: Sequence[Variant],
        settings: TrainingSettings,
        state_of: Callable[[Client], State],
    ) -> None:
        self.model = model
        self.variants = variants
        self.settings = settings
        self.state_of = state_of
        self.obstacle = obstacle(model, shape, variants)
        self.mixing = not self.obstacle and mixes(model, shape)
        """Whether a sample's result depends on the others of its batch, so that no batch can be filled up."""

    def train(self, clients: Sequence[Client]) -> dict[int, tuple[Report, float]]:
        """Return the reports of clients by number, each with the seconds of its share of a pass.

        Clients that stack with no other, and those of a pass that fails, as for lack of memory, are left out.
        """
        reports: dict[int, tuple[Report, float]] = {}
        for tasks in self.passes(clients):
            began = time.perf_counter()
            try:
                states = [self.state_of(task.client) for task in tasks]
                of_pass = train_stacked(tasks, states, self.mixing)
            except Exception as error:
                log.warning("%d clients train one by one: %s", len(tasks), error)
                continue
            seconds = (time.perf_counter() - began) / len(tasks)
            for task, report in zip(tasks, of_pass, strict=True):
                reports[task.client.id] = report, seconds
        return reports

    def passes(self, clients: Sequence[Client]) -> Iterator[list[Task]]:
        """Yield the tasks of clients that are stacked, those with the most samples first."""
        groups: dict[object, list[Task]] = {}
        # Clients of about one size share a pass, so that their batches are alike.
        for client in sorted(clients, key=lambda client: -len(client.samples)):
            if self.mixing and len(client.samples) == 1:
                continue  # batch norm has no variance of a single example
            task = task_of(client, self.variants, self.settings)
            shapes = {name: tuple(tensor.shape) for name, tensor in facts_of(task).items()}
            groups.setdefault(tuple(sorted(shapes.items())), []).append(task)
        most = self.settings.clients_per_pass
        for tasks in groups.values():
            for first in range(0, len(tasks), most):
                together = tasks[first : first + most]
                if len(together) > 1:
                    yield together


def train_stacked(tasks: Sequence[Task], states: Sequence[State], mixing: bool) -> list[Report]:
    """Train clients in one pass and return their reports. The model's own weights may be any afterwards.

    The tasks, of one kind, are sorted by samples, the most first, so that those with steps left are always the first.
    """
    model = tasks[0].client.model
    settings = tasks[0].settings
    before = []
    for task, state in zip(tasks, states, strict=True):
        load_for(task, "before", state)
        before.append(task.before())
    model.train()
    # Frozen weights are the same for all clients. Of the others, `weights` are trained, and `rest` are buffers.
    frozen_names = [name for name, weight in model.named_parameters() if not weight.requires_grad]
    frozen = {name: states[0][name] for name in frozen_names}
    stacked = stack([without(state, frozen) for state in states])
    weights = {name: stacked[name] for name in model.trained}
    rest = without(stacked, weights)
    facts = stack([facts_of(task) for task in tasks])

    optimizer = settings.local_optimizer(weights.values(), tasks[0].client.round)
    source = Source([task.client for task in tasks])
    plans = [list(batches(task.client, settings)) for task in tasks]
    totals_K = torch.zeros(len(tasks), dtype=torch.float64, device=source.device)
    mapped_loss = torch.vmap(partial(mean_loss, tasks[0], frozen))
    mapped_offsets = torch.vmap(
        lambda gradients, weights, about: seen(tasks[0], about).corrected(gradients, weights)
    )
    mapped_clip = torch.vmap(partial(clip, largest=settings.clip_norm))
    for step in range(len(plans[0])):
        optimizer.taken = step
        sizes = [len(plan[step]) for plan in plans if step < len(plan)]
        groups = [(0, len(sizes))]
        if mixing:  # a sample's result depends on its batch, so a batch cannot be filled up
            groups = groups_of_equal_size(sizes)
        for begin, end in groups:
            part = optimizer.rows(begin, end)
            part_rest = rows_of(rest, begin, end)
            part_facts = rows_of(facts, begin, end)
            parameters = {}
            for name, weight in zip(weights, part.parameters, strict=True):
                parameters[name] = weight.requires_grad_()
            batch = source.batch(begin, [plan[step] for plan in plans[begin:end]])
            with channels_last(model):
                losses_K = mapped_loss(parameters, part_rest, part_facts, *batch)
            # The clients' losses share no weight, so the gradient of their sum is each one's own.
            gradients: Sequence[Tensor] = torch.autograd.grad(
                losses_K.sum(), list(parameters.values())
            )
            with torch.no_grad():
                if tasks[0].overriding("gradient_offset"):
                    gradients = mapped_offsets(gradients, parameters, part_facts)
                if settings.clip_norm:
                    gradients = mapped_clip(gradients)
                part.step(gradients)
                totals_K[begin:end] += losses_K.detach()

    reports = []
    for row, (task, total) in enumerate(zip(tasks, totals_K.tolist(), strict=True)):
        steps = len(plans[row])
        state = {}
        for name in model.state_dict():
            state[name] = frozen[name] if name in frozen else stacked[name][row]
        load_for(task, "after", state)
        reports.append(task.report(before[row], steps, total / steps, state))
    return reports


def load_for(task: Task, hook: str, state: State) -> None:
    """Load a client's state into the model where a variant's hook looks at it."""
    if task.overriding(hook):
        task.client.model.load_state_dict(state)


def without(state: State, names: Container[str]) -> dict[str, Tensor]:
    """Return the tensors that are not named."""
    return {name: tensor for name, tensor in state.items() if name not in names}


@contextmanager
def channels_last(model: Classifier) -> Iterator[None]:
    """Within this context, convolutions leave images with channels last in memory, as when one client trains.

    Those of stacked clients have channels first, and the layers behind them take twice as long.
    """
    layers = []
    if channels_go_last(model):
        layers = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    hooks = [layer.register_forward_hook(laid_out) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def laid_out(layer: nn.Module, inputs: tuple[Tensor], images: Tensor) -> Tensor:
    """Return images (..., C, H, W) with channels last in memory, in words that go with vmap."""
    return images.movedim(-3, -1).contiguous().movedim(-1, -3)


def mean_loss(
    task: Task,
    frozen: State,
    weights: State,
    rest: State,
    about: State,
    inputs_B: Tensor,
    labels_B: Tensor,
    share_B: Tensor,
) -> Tensor:
    """Return () a client's mean loss over the samples whose share is not 0."""
    features, head = functional_parts(task.client.model, {**weights, **rest, **frozen})
    indices_B = torch.arange(len(labels_B), device=labels_B.device)
    task = seen(task, about, labels_B)
    losses_B = task.sample_losses(indices_B, inputs_B, labels_B, features, head)
    return (losses_B * share_B).sum()


def facts_of(task: Task) -> State:
    """Return the tensors of a client that the loss and the offsets of gradients depend on, beside what all share."""
    facts: dict[str, Tensor] = {}
    if task.offset_C is not None:
        facts["offset_C"] = task.offset_C
    if task.scale_C is not None:
        facts["scale_C"] = task.scale_C
    if not any(task.overriding(hook) for hook in MAPPED_HOOKS):
        return facts
    for name in COUNTS:
        facts[name] = getattr(task.client, name)
    for variant, state in task.client.memory.items():
        if variant == "private":  # part of the stacked weights
            continue
        for name, tensor in state.items():
            facts[f"memory/{variant}/{name}"] = tensor
    return facts


def seen(task: Task, about: State, labels_B: Tensor | None = None) -> Task:
    """Return the task of the client that these facts are of, as variants see it: nameless, with a batch's labels."""
    if not about:
        return task
    memory = {}
    own = {}
    for name, tensor in about.items():
        if name.startswith("memory/"):
            memory[name.removeprefix("memory/")] = tensor
        else:
            own[name] = tensor
    samples: Any = LabelsInPass(labels_B)
    client = replace(task.client, id=-1, seed=-1, samples=samples, memory=split_prefix(memory))
    # In place of the cached properties, which would count samples.
    vars(client).update({name: own[name] for name in COUNTS if name in own})
    return replace(task, client=client, offset_C=own.get("offset_C"), scale_C=own.get("scale_C"))


def stack(states: Sequence[State]) -> dict[str, Tensor]:
    """Return the states' tensors, stacked by name."""
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}


def rows_of(state: State, begin: int, end: int) -> dict[str, Tensor]:
    """Return some of the rows of every tensor."""
    return {name: tensor[begin:end] for name, tensor in state.items()}


def groups_of_equal_size(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return where clients with batches of one size follow each other: begin and end of each group."""
    groups = []
    begin = 0
    for end in range(1, len(sizes) + 1):
        if end == len(sizes) or sizes[end] != sizes[begin]:
            groups.append((begin, end))
            begin = end
    return groups


class Source:
    """Batches of several clients, each filled up to the largest with one of its samples that counts nothing."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self.clients = clients
        samples = [client.samples for client in clients]
        self.device = samples[0].labels_N.device
        self.draws = [client.generator("augmentation") for client in clients]
        in_memory = [part.inputs_N for part in samples if isinstance(part.inputs_N, Tensor)]
        dtypes = {tensor.dtype for tensor in in_memory}
        alike = len(in_memory) == len(samples) and len(dtypes) == 1
        self.joined: Samples | None = None
        """All clients' samples as one, where nothing is drawn and nothing decoded."""
        if alike and samples[0].augmentation == "none":
            inputs = torch.cat(in_memory)
            labels = torch.cat([part.labels_N for part in samples])
            self.joined = replace(samples[0], inputs_N=inputs, labels_N=labels, groups_N=None)
        sizes = [len(part) for part in samples]
        ends = torch.tensor([0, *sizes]).cumsum(0)
        self.firsts_K = ends[:-1].to(self.device)
        """Where each client's samples begin among all."""

    def batch(self, begin: int, indices: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs (K, B, ...), labels (K, B) and each sample's share (K, B) of its client's mean loss."""
        padded_KB = pad_sequence([*indices], batch_first=True, padding_value=-1)
        is_sample_KB = padded_KB >= 0
        samples_K1 = is_sample_KB.sum(1, keepdim=True)
        share_KB = is_sample_KB / samples_K1
        # Filled up with the batch's first sample: its label is one that the client has.
        first_K1 = padded_KB[:, :1]
        index_KB = torch.where(is_sample_KB, padded_KB, first_K1)
        end = begin + len(indices)
        if self.joined is not None:
            firsts_K1 = self.firsts_K[begin:end, None]
            flat = (index_KB + firsts_K1).flatten()
            inputs = self.joined.batch(flat)
            inputs_KB = inputs.view(*index_KB.shape, *inputs.shape[1:])
            labels_KB = self.joined.labels_N[flat].view_as(index_KB)
            return inputs_KB, labels_KB, share_KB

        labels = []
        images = []
        for row, client in enumerate(self.clients[begin:end]):
            labels.append(client.labels_N[index_KB[row]])
            # Only the batch's own samples: a sample that fills up takes no draws of augmentation.
            draws = self.draws[begin + row]
            images.append(client.samples.batch(indices[row], draws))
        images_KB = pad_sequence(images, batch_first=True)
        return images_KB, torch.stack(labels), share_KB


def fitting_clients(model: Classifier, shape: tuple[int, ...], batch_size: int) -> int:
    """Return what clients-per-pass = 0 stands for: a number that depends on these arguments alone."""
    if batch_size * multiplications(model, shape) > SHORT_STEP:
        return 1
    bytes_of_client = 4 * size(model.state_dict())
    return max(1, min(MOST_FITTING, FITTING_BYTES // bytes_of_client))


@torch.no_grad()
def multiplications(model: Classifier, shape: tuple[int, ...]) -> int:
    """Return the multiplications of linear layers and convolutions in one sample's pass.

    Those of random-conv's filters, which are no layer, are left out: its features are computed once and kept.
    """
    counts: list[int] = []

    def count(layer: nn.Linear | nn.Conv2d, inputs: tuple[Tensor], outputs: Tensor) -> None:
        places = outputs.numel() // len(layer.weight) // 2  # pixels, or 1 of a linear layer
        counts.append(layer.weight.numel() * places)

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    mode = model.training
    model.eval()
    model(torch.zeros(2, *shape, device=model.head.weight.device))  # as own models are tried
    model.train(mode)
    for hook in hooks:
        hook.remove()
    return sum(counts)


MAPPED_HOOKS = ("loss_weights", "loss_term", "gradient_offset")
"""The variants' hooks that torch.vmap maps over the clients; all others are called client by client."""


def unmapped(variants: Sequence[Variant]) -> str:
    """Return which variant torch.vmap cannot map over clients, and why; an empty sentence where it maps all."""
    for variant in variants:
        if "teacher" in variant.needs:
            return f"{variant.name} asks for the logits of a second model, the one received"
        if variant.head_first:
            return f"{variant.name} trains the head and the features one after the other"
        if overrides(variant, "parameters"):
            return f"{variant.name} trains parameters of its own"
        for hook in MAPPED_HOOKS:
            marked = getattr(getattr(variant, hook), "vectorizable", False)
            if overrides(variant, hook) and not marked:
                return f"{variant.name} does not say that it can (@vectorizable at {hook})"
    return ""


def obstacle(model: Classifier, shape: tuple[int, ...], variants: Sequence[Variant]) -> str:
    """Return why clients cannot train together, or an empty sentence; the model is tried on samples of zeros."""
    reason = unmapped(variants)
    if reason:
        return reason
    with_duplicates = list(model.named_parameters(remove_duplicate=False))
    if len(with_duplicates) > len(list(model.named_parameters())):
        return "two parts of the model share a parameter"
    state = stack([model.state_dict()] * 2)
    zeros = torch.zeros(2, 3, *shape, device=model.head.weight.device)
    mode = model.training
    model.train()
    try:
        torch.vmap(partial(functional_call, model))(state, zeros)
    except Exception as error:
        drawing = "randomness" in str(error)  # torch's words for dropout and its like
        if drawing:
            return "the model draws at random in training, as dropout does"
        return f"the model: {sentence(error)}"
    finally:
        model.train(mode)
    return ""


def mixes(model: Classifier, shape: tuple[int, ...]) -> bool:
    """Return whether a sample's logits in training depend on the other samples of its batch, as with batch norm."""
    draws = torch.Generator().manual_seed(0)
    inputs_B = torch.rand(3, *shape, generator=draws).to(model.head.weight.device)
    inputs_B.requires_grad_()
    state = copy(model.state_dict())  # running statistics change in training mode
    mode = model.training
    model.train()
    logits_BC = functional_call(model, state, inputs_B)
    model.train(mode)
    (slopes_B,) = torch.autograd.grad(logits_BC[0].sum(), inputs_B)
    return bool(slopes_B[1:].any())
