"""The local training loop, the same for every method."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from client_app.client import (
    Client,
    Contribution,
    Report,
    Trained,
    Variant,
    check_numbers,
    overrides,
)
from client_app.models.classifier import HEAD
from client_app.optimizer import TrainingSettings, clip, coefficient_sum
from client_app.state import State, copy, seed_global


@dataclass(frozen=True)
class Task:
    """One client's training in one round: the loss and offsets of all its variants, combined.

    `train_round` uses it for a single client, and vectorized.py for several stacked ones.
    """

    client: Client
    """With the sampling weights of the variant that samples, if there is one."""
    variants: Sequence[Variant]
    """Sorted by name."""
    settings: TrainingSettings
    offset_C: Tensor | None
    """(C,): the sum of the logit offsets."""
    scale_C: Tensor | None = None
    """(C,): the product of the logit scales."""
    teacher: State | None = None
    """A copy of the model's state as received, if a variant's `loss_term` needs that model's logits."""

    def overriding(self, hook: str) -> list[Variant]:
        """Return the variants that override `hook`."""
        return [variant for variant in self.variants if overrides(variant, hook)]

    def loss(self, indices_B: Tensor, draws: torch.Generator | None = None) -> Tensor:
        """Return the combined training loss over the samples `indices_B`; see `client.Loss`.

        Args:
            indices_B: the samples.
            draws: augments the images with draws from this generator; None does not augment.
        """
        inputs_B = self.client.samples.batch(indices_B, draws)
        labels_B = self.client.labels_N[indices_B]
        model = self.client.model
        losses_B = self.sample_losses(indices_B, inputs_B, labels_B, model.features, model.head)
        return losses_B.mean()

    def sample_losses(
        self,
        indices_B: Tensor,
        inputs_B: Tensor,
        labels_B: Tensor,
        features: Callable[[Tensor], Tensor],
        head: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Return (B,) the samples' losses with all terms; the model is head(features(inputs))."""
        with self.precision(inputs_B):
            features_BD = features(inputs_B)
            logits_BC = head(features_BD)
        losses_B = self.losses(logits_BC, labels_B)
        adding = self.overriding("loss_term")
        if not adding:
            return losses_B
        teacher_BC = None if self.teacher is None else self.teacher_logits(inputs_B)
        weight = self.client.model.head.weight
        features_BD = features_BD.to(weight)  # with autocast they are bfloat16
        logits_BC = logits_BC.to(weight)
        terms_B = torch.zeros_like(logits_BC[:, 0])
        for variant in adding:
            term_B = variant.loss_term(self.client, indices_B, features_BD, logits_BC, teacher_BC)
            terms_B = terms_B + term_B
        return losses_B + terms_B

    def precision(self, inputs_B: Tensor) -> torch.autocast:
        """Return the autocast context for a forward pass; it changes nothing unless precision = bfloat16."""
        return torch.autocast(
            inputs_B.device.type, torch.bfloat16, self.settings.precision == "bfloat16"
        )

    def losses(self, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        """Return (B,) the samples' cross-entropies, with all logit scales, logit offsets and loss weights."""
        # With autocast the logits are bfloat16. From here on everything has the dtype of the weights.
        logits_BC = logits_BC.to(self.client.model.head.weight)
        scale_C = self.scale_C
        offset_C = self.offset_C
        if self.client.parameters:  # every step changes them, and they may be part of both
            scale_C = total(self.client, self.variants, "logit_scale", torch.mul)
            offset_C = total(self.client, self.variants, "logit_offset", torch.add)
        if scale_C is not None:
            logits_BC = logits_BC * scale_C
        if offset_C is not None:
            logits_BC = logits_BC + offset_C
        losses_B = F.cross_entropy(logits_BC, labels_B, reduction="none")
        for variant in self.overriding("loss_weights"):
            losses_B = losses_B * variant.loss_weights(self.client, logits_BC, labels_B)
        return losses_B

    @torch.no_grad()
    def teacher_logits(self, inputs_B: Tensor) -> Tensor:
        """Return (B, C) logits of the model as received, in eval mode; the model's mode is restored."""
        model = self.client.model
        modes = [(module, module.training) for module in model.every_module]
        model.eval()
        with self.precision(inputs_B):
            logits_BC: Tensor = functional_call(model, dict(self.teacher or {}), (inputs_B,))
        for module, mode in modes:  # freeze_statistics may have left batch norm in eval mode
            module.training = mode
        return logits_BC.to(model.head.weight)

    def corrected(self, gradients: Sequence[Tensor], parameters: State) -> Sequence[Tensor]:
        """Return the gradients with the variants' gradient offsets added, in the order of `parameters`."""
        for variant in self.overriding("gradient_offset"):
            changed = []
            for gradient, (name, weight) in zip(gradients, parameters.items(), strict=True):
                term = variant.gradient_offset(self.client, name, weight)
                changed.append(gradient if term is None else gradient + term)
            gradients = changed
        return gradients

    def phases(self) -> list[tuple[Mapping[str, nn.Parameter], TrainingSettings, str]]:
        """Return the phases of the round: parameters to train, their settings, and the stream of `batches`.

        There is one phase, or with a variant's `head_first` two: the head alone, then all other parameters.
        Raises ValueError if the head trains first and no other parameter trains.
        """
        parameters = self.client.model.trained
        epochs = max((variant.head_first for variant in self.variants), default=0)
        if not epochs:
            return [(parameters, self.settings, "batches")]
        head = {name: weight for name, weight in parameters.items() if name.startswith(HEAD)}
        features = {name: weight for name, weight in parameters.items() if name not in head}
        if not features:
            raise ValueError("the head trains first, and no other layer trains")
        head_settings = replace(self.settings, local_epochs=epochs, local_steps=0)
        head_phase = (head, head_settings, "head batches")
        features_phase = (features, self.settings, "batches")
        return [head_phase, features_phase]

    def before(self) -> dict[str, Contribution]:
        """Return the contributions of the variants' `before` hooks, by variant.

        They are called with the model as received, in eval mode, which is left on.
        """
        contributing = self.overriding("before")
        if contributing:
            self.client.model.eval()
        return {variant.name: variant.before(self.client, self.loss) for variant in contributing}

    def report(
        self,
        before: dict[str, Contribution],
        steps: int,
        loss: float,
        state: State,
    ) -> Report:
        """Return the report after training.

        Args:
            before: the contributions from before training.
            steps: optimizer steps taken.
            loss: mean training loss over the steps.
            state: the model's state after training.
        """
        rate = self.settings.rate(self.client.round)
        pull = total_proximal_mu(self.variants) * rate
        trained = Trained(
            steps=steps,
            coefficient_sum=coefficient_sum(steps, self.settings.coefficient_momentum, pull),
            learning_rate=rate,
            state=state,
            settings=self.settings,
        )
        learned = {name: copy(own) for name, own in self.client.parameters.items()}
        client = replace(self.client, parameters=learned)
        after = {variant.name: variant.after(client, trained) for variant in self.variants}
        numbers: dict[str, float] = {}
        for variant, own in merged("numbers", before, after).items():
            numbers |= {f"{variant}/{name}": float(value) for name, value in own.items()}
        check_numbers(numbers)
        private = private_names(self.client.model, self.variants)
        kept = {name: Contribution(memory=own) for name, own in learned.items()}
        memory = merged("memory", before, after, kept)
        if private:
            memory["private"] = {name: state[name] for name in sorted(private)}
        return Report(
            examples=len(self.client.samples),
            loss=loss,
            trained=trained,
            shared={name: tensor for name, tensor in state.items() if name not in private},
            uploads=merged("upload", before, after),
            memory=memory,
            numbers=numbers,
        )


def task_of(client: Client, variants: Sequence[Variant], settings: TrainingSettings) -> Task:
    """Combine the variants of a client into its task. Raises ValueError if two variants sample."""
    variants = sorted(variants, key=lambda variant: variant.name)
    # The sampler comes first: logit offsets may depend on the class distribution that it draws.
    client = with_sampler(client, variants)
    client = with_parameters(client, variants)
    return Task(
        client,
        variants,
        settings,
        offset_C=total(client, variants, "logit_offset", torch.add),
        scale_C=total(client, variants, "logit_scale", torch.mul),
    )


def train_round(client: Client, variants: Sequence[Variant], settings: TrainingSettings) -> Report:
    """Train `client.model` for one round and return the report.

    The model is changed in place; `client.start`, `broadcast` and `memory` are not. Variants are applied sorted by
    name, so the result is bit-identical for any order of `variants`.

    clip-norm bounds the gradient with the variants' gradient offsets, which belong to the gradient of the objective,
    and with the gradients of the variants' own parameters.
    Weight decay and momentum are applied after clipping, as with torch.nn.utils.clip_grad_norm_ before torch.optim.SGD.

    Raises ValueError if two variants sample, or if a variant contributes a name both before and after
    training.
    """
    task = task_of(client, variants, settings)
    if any("teacher" in variant.needs for variant in variants):
        task = replace(task, teacher=copy(client.model.state_dict()))
    before = task.before()
    prepared = {name: one.prepared for name, one in before.items() if one.prepared}
    if prepared:
        task = replace(task, client=replace(task.client, prepared=prepared))
    client = task.client
    seed_global(client.seed, client.labels_N.device)
    client.model.train()
    if len(client.samples) == 1:
        freeze_statistics(client.model)  # a batch of one sample has no variance to normalize by
    # Only training steps augment images: the loss that `before` hooks get does not.
    augmentation = client.generator("augmentation")
    own = [tensor for state in client.parameters.values() for tensor in state.values()]
    has_sampler = client.sampling_weights_N is not None
    for parameters, phase, stream in task.phases():
        weights = list(parameters.values())
        optimizer = phase.local_optimizer([*weights, *own], client.round)
        steps = 0
        total = torch.zeros((), dtype=torch.float64, device=client.labels_N.device)
        drawn_N = torch.zeros_like(client.labels_N, dtype=torch.bool)
        for indices_B in batches(client, phase, stream):
            if has_sampler:
                drawn_N[indices_B] = True
            loss = task.loss(indices_B, draws=augmentation)
            gradients: Sequence[Tensor] = torch.autograd.grad(
                loss,
                [*weights, *own],
                materialize_grads=bool(own),  # a variant need not use its parameters in every step
            )
            with torch.no_grad():
                of_model = task.corrected(gradients[: len(weights)], parameters)
                gradients = [*of_model, *gradients[len(weights) :]]
            if settings.clip_norm:
                gradients = clip(gradients, settings.clip_norm)
            optimizer.step(gradients)
            steps += 1
            total = total + loss.detach()  # on the device: `item()` in each step would wait for it
    # Report all of the last phase, the only one that trains shared weights.
    report = task.report(before, steps, total.item() / steps, copy(client.model.tensors))
    return replace(report, drawn=int(drawn_N.sum()) if has_sampler else None)


def with_sampler(client: Client, variants: Sequence[Variant]) -> Client:
    """Return the client with the sampling weights of the variant that samples, if there is one.

    Raises ValueError if two variants sample.
    """
    weights_N = None
    sampler = ""
    for variant in variants:
        wanted_N = variant.sample_weights(client)
        if wanted_N is None:
            continue
        if weights_N is not None:
            raise ValueError(f"{sampler} and {variant.name} both want to draw the samples")
        weights_N = wanted_N
        sampler = variant.name
    return replace(client, sampling_weights_N=weights_N)


def with_parameters(client: Client, variants: Sequence[Variant]) -> Client:
    """Return the client with the variants' own parameters: the values in its memory, or else the initial ones.

    They have the head's device and dtype, and require gradients. Raises ValueError for what is no tensor.
    """
    parameters: dict[str, State] = {}
    for variant in variants:
        if not overrides(variant, "parameters"):
            continue
        kept = client.memory.get(variant.name, {})
        own: dict[str, Tensor] = {}
        for name, initial in variant.parameters(client).items():
            value = kept.get(name, initial)
            if not isinstance(value, Tensor):
                raise ValueError(
                    f"{variant.name} owns the parameter {name}, which must be a tensor"
                )
            own[name] = value.detach().to(client.model.head.weight, copy=True).requires_grad_()
        if own:
            parameters[variant.name] = own
    return replace(client, parameters=parameters)


def total(
    client: Client,
    variants: Sequence[Variant],
    hook: str,
    combine: Callable[[Tensor, Tensor], Tensor],
) -> Tensor | None:
    """Return (C,) what the variants give at a hook, combined, with the head's device and dtype; None if none does."""
    given = [getattr(variant, hook)(client) for variant in variants]
    given = [values_C for values_C in given if values_C is not None]
    if not given:
        return None
    total_C: Tensor = reduce(combine, given)
    return total_C.to(client.model.head.weight)


def total_proximal_mu(variants: Sequence[Variant]) -> float:
    """Return the sum of the variants' proximal_mu: the strength of the pull towards the weights as received."""
    return sum(variant.proximal_mu for variant in variants)


def batches(
    client: Client, settings: TrainingSettings, stream: str = "batches"
) -> Iterator[Tensor]:
    """Yield the sample indices of each step, (B,), drawn with the client's generator named `stream`.

    An epoch is a shuffle of the N samples. With sampling weights it is N draws with replacement.
    """
    generator = client.generator(stream)
    size = len(client.samples)
    weights_N = client.sampling_weights_N
    weights_N = None if weights_N is None else weights_N.cpu()

    def epoch() -> list[Tensor]:
        if weights_N is None:
            order_N = torch.randperm(size, generator=generator)
        else:
            order_N = torch.multinomial(weights_N, size, replacement=True, generator=generator)
        every_batch = mini_batches(order_N.to(client.labels_N.device), settings.batch_size)
        return every_batch[: settings.batch_limit or None]

    if not settings.local_steps:
        for _ in range(settings.local_epochs):
            yield from epoch()
        return
    steps_left = settings.local_steps
    while steps_left:
        for indices_B in epoch()[:steps_left]:
            yield indices_B
            steps_left -= 1


def steps_of(samples: int, settings: TrainingSettings) -> int:
    """Return the number of optimizer steps in a round of a client with `samples`: how many batches `batches` yields."""
    if settings.local_steps:
        return settings.local_steps
    per_epoch, rest = divmod(samples, settings.batch_size)
    joins_previous = rest == 1 and per_epoch > 0  # as in `mini_batches`
    if rest and not joins_previous:
        per_epoch += 1
    return settings.local_epochs * min(per_epoch, settings.batch_limit or per_epoch)


def mini_batches(order_N: Tensor, size: int) -> list[Tensor]:
    """Split `order_N` into batches of `size` samples.

    A last batch of one sample joins the batch before, as batch norm cannot train on a single sample; batches of one
    sample each, which such a model cannot train on at all, stay as they are.
    """
    split = list(torch.split(order_N, size))
    if size > 1 and len(split) > 1 and len(split[-1]) == 1:
        single = split.pop()
        split[-1] = torch.cat([split[-1], single])
    return split


def freeze_statistics(model: nn.Module) -> None:
    """Put the batch norm layers into eval mode, and no other layer: they then normalize by their running statistics."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def private_names(model: nn.Module, variants: Sequence[Variant]) -> frozenset[str]:
    """Return the names of the model's state that stay on the client: the union over the variants."""
    return frozenset().union(*(variant.private_names(model) for variant in variants))


def merged(field: str, *stages: dict[str, Contribution]) -> dict[str, dict[str, Any]]:
    """Merge one field (upload, memory or numbers) of the contributions of a round's stages, by variant.

    Raises ValueError if a variant contributes the same name at two stages.
    """
    result: dict[str, dict[str, Any]] = {}
    for stage in stages:
        for name, contribution in stage.items():
            contributed = getattr(contribution, field)
            earlier = result.get(name, {})
            twice = sorted(contributed.keys() & earlier.keys())
            if twice:
                rule = f"contributes {twice} to the {field} twice: before training, after it, or as parameters"
                raise ValueError(f"{name} {rule}")
            if contributed:
                result[name] = {**earlier, **contributed}
    return result
