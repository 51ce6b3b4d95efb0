"""The one training loop: what every method runs on a client."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from client_app.client import Client, Contribution, Report, Trained, Variant, overrides
from client_app.models.classifier import HEAD
from client_app.optimizer import TrainingSettings, clip, coefficient_sum
from client_app.state import State, copy, seed_global


@dataclass(frozen=True)
class Task:
    """A client's training in one round as its variants make it: what one client and many together have in common."""

    client: Client
    """With the sampling weights in force."""
    variants: Sequence[Variant]
    """In the order of their names."""
    settings: TrainingSettings
    offset: Tensor | None
    """The sum of the logit offsets, (C,) or (C, C)."""
    scale_C: Tensor | None = None
    """(C,) the product of the logit scales."""
    targets_N: Tensor | None = None
    """(N,) or (N, C): what to train towards in place of the samples' labels."""
    teacher: State | None = None
    """The model's state as received, where a variant's `loss_term` asks for its logits."""

    def overriding(self, hook: str) -> list[Variant]:
        """Return the variants that have a hook of their own."""
        return [variant for variant in self.variants if overrides(variant, hook)]

    def loss(
        self,
        indices_B: Tensor,
        weights_B: Tensor | None = None,
        draws: torch.Generator | None = None,
    ) -> Tensor:
        """Return the combined training loss, as `Loss`; with `draws` the images are augmented."""
        inputs_B = self.client.samples.batch(indices_B, draws)
        labels_B = self.client.labels_N[indices_B]
        targets_B = None if self.targets_N is None else self.targets_N[indices_B]
        if not self.overriding("loss_term"):
            with self.precision(inputs_B):
                logits_BC = self.client.model(inputs_B)
            losses_B = self.losses(logits_BC, labels_B, targets_B)
        else:
            with self.precision(inputs_B):
                features_BD = self.client.model.features(inputs_B)
                logits_BC = self.client.model.head(features_BD)
            losses_B = self.losses(logits_BC, labels_B, targets_B)
            teacher_BC = None if self.teacher is None else self.teacher_logits(inputs_B)
            losses_B = losses_B + self.terms(indices_B, features_BD, logits_BC, teacher_BC)
        if weights_B is None:
            return losses_B.mean()
        return (losses_B * weights_B.to(losses_B)).mean()

    def precision(self, inputs_B: Tensor) -> torch.autocast:
        """Return the context of a pass through the model."""
        return torch.autocast(
            inputs_B.device.type, torch.bfloat16, self.settings.precision == "bfloat16"
        )

    def losses(
        self, logits_BC: Tensor, labels_B: Tensor, targets_B: Tensor | None = None
    ) -> Tensor:
        """Return (B,): what the samples' logits cost, with all offsets and weights.

        `targets_B` are the targets of the cross-entropy, the labels where they are None.
        """
        # Autocast gave bfloat16; from here on everything is in the weights' own precision.
        logits_BC = logits_BC.to(self.client.model.head.weight)
        if self.scale_C is not None:
            logits_BC = logits_BC * self.scale_C
        if self.offset is not None:
            row_per_label = self.offset.dim() == 2
            offset = self.offset[labels_B] if row_per_label else self.offset
            logits_BC = logits_BC + offset
        if targets_B is None:
            targets_B = labels_B
        losses_B = F.cross_entropy(logits_BC, targets_B, reduction="none")
        for variant in self.overriding("loss_weights"):
            losses_B = losses_B * variant.loss_weights(self.client, logits_BC, labels_B)
        return losses_B

    def terms(
        self,
        indices_B: Tensor,
        features_BD: Tensor,
        logits_BC: Tensor,
        teacher_BC: Tensor | None = None,
    ) -> Tensor:
        """Return (B,) the sum of the variants' loss terms, in the weights' own precision."""
        weight = self.client.model.head.weight
        features_BD = features_BD.to(weight)
        logits_BC = logits_BC.to(weight)
        total_B = torch.zeros_like(logits_BC[:, 0])
        for variant in self.overriding("loss_term"):
            term_B = variant.loss_term(self.client, indices_B, features_BD, logits_BC, teacher_BC)
            total_B = total_B + term_B
        return total_B

    @torch.no_grad()
    def teacher_logits(self, inputs_B: Tensor) -> Tensor:
        """Return (B, C) logits of the model as received, in eval mode; the model's mode is restored."""
        model = self.client.model
        modes = [(module, module.training) for module, _ in model.modes]
        model.eval()
        with self.precision(inputs_B):
            logits_BC: Tensor = functional_call(model, dict(self.teacher or {}), (inputs_B,))
        for module, mode in modes:  # freeze_statistics may have left batch norm in eval mode
            module.training = mode
        return logits_BC.to(model.head.weight)

    def corrected(self, gradients: Sequence[Tensor], parameters: State) -> Sequence[Tensor]:
        """Return the parameters' gradients with all offsets."""
        for variant in self.overriding("gradient_offset"):
            changed = []
            for gradient, (name, weight) in zip(gradients, parameters.items(), strict=True):
                term = variant.gradient_offset(self.client, name, weight)
                changed.append(gradient if term is None else gradient + term)
            gradients = changed
        return gradients

    def parts(self) -> list[tuple[Mapping[str, nn.Parameter], TrainingSettings, str]]:
        """Return what trains together, one part after the other: parameters, settings, and what shuffles the samples.

        Raises ValueError where a variant trains the head first and no other layer trains.
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
        head_part = (head, head_settings, "head batches")
        features_part = (features, self.settings, "batches")
        return [head_part, features_part]

    def before(self) -> dict[str, Contribution]:
        """Return what the variants contribute of the model as received, which every one of them sees in eval mode."""
        beginning = self.overriding("before")
        if beginning:
            self.client.model.eval()
        return {variant.name: variant.before(self.client, self.loss) for variant in beginning}

    def with_teacher(self) -> "Task":
        """Return the task with the model as received for a teacher, if a variant asks for its logits."""
        if not any(variant.requirements.teacher for variant in self.variants):
            return self
        return replace(self, teacher=copy(self.client.model.state_dict()))

    def with_prepared(self, before: Mapping[str, Contribution]) -> "Task":
        """Return the task whose client has what the variants prepared for their loss terms."""
        prepared = {name: one.prepared for name, one in before.items() if one.prepared}
        if not prepared:
            return self
        return replace(self, client=replace(self.client, prepared=prepared))

    def report(
        self,
        before: dict[str, Contribution],
        steps: int,
        loss: float,
        state: State,
    ) -> Report:
        """Return what is sent and kept after training to `state`."""
        rate = self.settings.rate(self.client.round)
        pull = total_proximal_mu(self.variants) * rate
        trained = Trained(
            steps=steps,
            coefficient_sum=coefficient_sum(steps, self.settings.coefficient_momentum, pull),
            learning_rate=rate,
            state=state,
            settings=self.settings,
        )
        after = {variant.name: variant.after(self.client, trained) for variant in self.variants}
        private = private_names(self.client.model, self.variants)
        return Report(
            examples=len(self.client.samples),
            loss=loss,
            trained=trained,
            shared={name: tensor for name, tensor in state.items() if name not in private},
            uploads=merged("upload", before, after),
            memory=merged("memory", before, after) | kept_private(state, private),
        )


def task_of(client: Client, variants: Sequence[Variant], settings: TrainingSettings) -> Task:
    """Return the client's task. Raises ValueError when two variants want to sample, or to change the labels."""
    variants = sorted(variants, key=lambda variant: variant.name)
    # First, as offsets depend on the class distribution that the sampler makes.
    client = with_sampler(client, variants)
    return Task(
        client,
        variants,
        settings,
        offset=total_offset(client, variants),
        scale_C=total_scale(client, variants),
        targets_N=changed_labels(client, variants),
    )


def train_round(client: Client, variants: Sequence[Variant], settings: TrainingSettings) -> Report:
    """Train `client.model` for one round and return what is sent and what is kept.

    Variants are walked in the order of their names, so the result is the same to the bit in whatever order they are
    given. The model is changed in place; `client.start`, `broadcast` and `memory` are not.
    clip-norm bounds what the optimizer is given, the variants' gradient offsets included: these are a part of the
    objective's gradient, and a bound without them would bound no step. Weight decay and momentum come after, as with
    torch.nn.utils.clip_grad_norm_ before torch.optim.SGD.
    Raises ValueError when two variants want to sample or to change labels, or contribute under one name.
    """
    task = task_of(client, variants, settings).with_teacher()
    before = task.before()
    task = task.with_prepared(before)
    client = task.client
    seed_global(client.seed, client.labels_N.device)
    client.model.train()
    if len(client.samples) == 1:
        freeze_statistics(client.model)  # one example has no variance to normalize by
    # Only training steps augment: no hook sees an augmented image.
    augmentation = client.generator("augmentation")
    for parameters, part, stream in task.parts():
        optimizer = part.local_optimizer(parameters.values(), client.round)
        steps = 0
        steps_due = steps_of(len(client.samples), part)
        total = torch.zeros((), dtype=torch.float64, device=client.labels_N.device)
        for indices_B in batches(client, part, stream):
            loss = task.loss(indices_B, draws=augmentation)
            gradients: Sequence[Tensor] = torch.autograd.grad(loss, list(parameters.values()))
            with torch.no_grad():
                gradients = task.corrected(gradients, parameters)
            if settings.clip_norm:
                gradients = clip(gradients, settings.clip_norm)
            optimizer.rate = part.rate(client.round, steps, steps_due)
            optimizer.step(gradients)
            steps += 1
            total = total + loss.detach()  # left on the device: nothing waits for a number here
    # Steps and loss of the last part, which trains what is shared.
    return task.report(before, steps, total.item() / steps, copy(client.model.tensors))


def with_sampler(client: Client, variants: Sequence[Variant]) -> Client:
    """Return the client with the sampling weights of the one variant that has some."""
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


def changed_labels(client: Client, variants: Sequence[Variant]) -> Tensor | None:
    """Return the labels of the one variant that changes them, on the samples' device, or None."""
    labels_N = None
    changing = ""
    for variant in variants:
        wanted_N = variant.labels(client)
        if wanted_N is None:
            continue
        if labels_N is not None:
            raise ValueError(f"{changing} and {variant.name} both want to change the labels")
        labels_N = wanted_N.to(client.labels_N.device)
        changing = variant.name
    return labels_N


def total_offset(client: Client, variants: Sequence[Variant]) -> Tensor | None:
    """Return the sum of the logit offsets, (C,) or (C, C), on the head's device, or None when there are none."""
    total = None
    for variant in variants:
        offset = variant.logit_offset(client)
        if offset is not None:
            total = offset if total is None else total + offset
    return None if total is None else total.to(client.model.head.weight)


def total_scale(client: Client, variants: Sequence[Variant]) -> Tensor | None:
    """Return (C,) the product of the logit scales on the head's device, or None when there are none."""
    total_C = None
    for variant in variants:
        scale_C = variant.logit_scale(client)
        if scale_C is not None:
            total_C = scale_C if total_C is None else total_C * scale_C
    return None if total_C is None else total_C.to(client.model.head.weight)


def total_proximal_mu(variants: Sequence[Variant]) -> float:
    """Return the strength of the pull towards the weights as received, of all variants together."""
    return sum(variant.proximal_mu for variant in variants)


def batches(
    client: Client, settings: TrainingSettings, stream: str = "batches"
) -> Iterator[Tensor]:
    """Yield the indices of each step's samples, drawn from the client's generator named `stream`.

    An epoch is a shuffle, or as many draws with replacement when there are sampling weights.
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
    """Return the optimizer steps of a round for a client of so many samples: what `batches` yields."""
    if settings.local_steps:
        return settings.local_steps
    epoch, rest = divmod(samples, settings.batch_size)
    joins_the_last = rest == 1 and epoch > 0
    if rest and not joins_the_last:
        epoch += 1
    return settings.local_epochs * min(epoch, settings.batch_limit or epoch)


def mini_batches(order_N: Tensor, size: int) -> list[Tensor]:
    """Return an epoch's batches; a last one of one example joins the one before: batch norm cannot train on one."""
    parts = list(torch.split(order_N, size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        single = parts.pop()
        parts[-1] = torch.cat([parts[-1], single])
    return parts


def freeze_statistics(model: nn.Module) -> None:
    """Put batch norm alone into eval mode."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def private_names(model: nn.Module, variants: Sequence[Variant]) -> frozenset[str]:
    """Return the names of the model's state that stay on the client: the union over the variants."""
    return frozenset().union(*(variant.private_names(model) for variant in variants))


def kept_private(state: State, private: frozenset[str]) -> dict[str, State]:
    """Return the memory entry of the private tensors, none when nothing is private."""
    if private:
        return {"private": {name: state[name] for name in sorted(private)}}
    return {}


def merged(part: str, *stages: dict[str, Contribution]) -> dict[str, State]:
    """Return each variant's `part` of its contributions; a name contributed twice is a ValueError."""
    result: dict[str, State] = {}
    for stage in stages:
        for name, contribution in stage.items():
            state: State = getattr(contribution, part)
            earlier = result.get(name, {})
            twice = sorted(state.keys() & earlier.keys())
            if twice:
                rule = f"contributes {twice} to the {part} both before and after training"
                raise ValueError(f"{name} {rule}")
            if state:
                result[name] = {**earlier, **state}
    return result
