"""FedDF and FedBE: ensembles, the models that FedBE draws, and the student's steps, against their equations."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from server_builders import CLASSES, draws, model_of, samples_of, server_of, state_of, updates_of

import strategies.fedbe
from client_app.optimizer import clip
from client_app.state import State, copy, digest, weighted_mean
from data import Samples, SettingError
from strategies.core.server import Server, ServerMethod, Update
from strategies.distillation import Adam, batches, cosine, distill, divergence, logits_of
from strategies.fedavg import FedAvg
from strategies.fedbe import FedBE, gaussian, mean_probabilities, sharpened
from strategies.feddf import FedDF, mean_logits


@pytest.fixture
def server() -> Server:
    return server_of(samples_of())


BOTH = [FedDF, FedBE]
METHODS: list[tuple[type[ServerMethod], dict[str, Any]]] = [
    (FedDF, {}), (FedBE, {}), (FedBE, {"distribution": "dirichlet"}),
]  # fmt: skip


def combined(server: Server, kind: type[ServerMethod], *seeds: int, **settings: Any) -> State:
    return kind(**settings).combine(server, {}, updates_of(*(seeds or (1, 2, 3))))[0]


# ---- both ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "settings"), METHODS)
def test_no_steps_are_fedavg(
    server: Server, kind: type[ServerMethod], settings: dict[str, Any]
) -> None:
    mean, _ = FedAvg().combine(server, {}, updates_of(1, 2, 3))
    assert digest([combined(server, kind, steps=0, **settings)]) == digest([mean])
    model = combined(server, kind, steps=5, batch_size=8, **settings)
    assert digest([model]) != digest([mean]) and model.keys() == mean.keys()
    assert all(torch.isfinite(t).all() and t.dtype == mean[n].dtype for n, t in model.items())


@pytest.mark.parametrize(("kind", "settings"), METHODS)
def test_a_round_repeats_to_the_bit(
    server: Server, kind: type[ServerMethod], settings: dict[str, Any]
) -> None:
    settings = {"steps": 5, "batch_size": 8, **settings}
    first = digest([combined(server, kind, **settings)])
    server.model.load_state_dict(state_of(9))  # the scratchpad's weights have no meaning
    assert digest([combined(server, kind, **settings)]) == first
    assert digest([combined(server_of(samples_of(), round=2), kind, **settings)]) != first
    assert digest([combined(server_of(samples_of(), seed=1), kind, **settings)]) != first


@pytest.mark.parametrize(("kind", "settings"), METHODS)
def test_labels_are_not_looked_at(kind: type[ServerMethod], settings: dict[str, Any]) -> None:
    samples = samples_of()
    shuffled = type(samples)(samples.inputs_N, samples.labels_N.flip(0), samples.mean, samples.std)
    models = [
        combined(server_of(holdout), kind, steps=5, batch_size=8, **settings)
        for holdout in (samples, shuffled)
    ]
    assert digest(models[:1]) == digest(models[1:])


@pytest.mark.parametrize("kind", BOTH)
def test_nothing_is_mutated(server: Server, kind: type[ServerMethod]) -> None:
    updates = updates_of(1, 2, 3)
    given = [server.start, *(update.shared for update in updates)]
    before = digest(given)
    shared, _ = kind(steps=4).combine(server, {}, updates)  # type: ignore[call-arg]
    result = digest([shared])
    server.model.load_state_dict(state_of(9))
    assert (
        digest(given) == before and digest([shared]) == result
    )  # the result is no view of the scratchpad


@pytest.mark.parametrize("kind", BOTH)
def test_a_holdout_is_needed(kind: type[ServerMethod]) -> None:
    with pytest.raises(
        SettingError, match=rf"holdout-per-class = 0: {kind.name} needs images of the server's own"
    ):
        combined(server_of(), kind)


@pytest.mark.parametrize(("kind", "learning_rate"), [(FedDF, 0.01), (FedBE, 0.05)])
def test_the_student_comes_closer_to_the_teacher(
    server: Server, kind: type[ServerMethod], learning_rate: float
) -> None:
    samples, model = samples_of(), model_of()
    mean, _ = FedAvg().combine(server, {}, updates_of(1, 2, 3))
    if kind is FedDF:
        teacher = mean_logits([logits_of(model, state_of(seed), samples) for seed in (1, 2, 3)])
    else:
        states = [mean, *(state_of(seed) for seed in (1, 2, 3))]
        teacher = sharpened(
            mean_probabilities([logits_of(model, state, samples) for state in states]), 0.5
        )
    student = combined(
        server, kind, learning_rate=learning_rate, **({"models": 0} if kind is FedBE else {})
    )
    distances = [
        divergence(logits_of(model, state, samples), teacher).item() for state in (mean, student)
    ]
    assert 0 < distances[1] < distances[0] / 2


# ---- ensembles -------------------------------------------------------------------------------------------------------


def logits(*seeds: int) -> list[torch.Tensor]:
    return [logits_of(model_of(), state_of(seed), samples_of()) for seed in seeds]


def test_divergence_from_oneself_is_zero() -> None:
    (logits_BC,) = logits(1)
    logits_BC.requires_grad_(True)
    loss = divergence(logits_BC, torch.softmax(logits_BC.detach(), dim=1))
    (gradient,) = torch.autograd.grad(loss, logits_BC)
    assert abs(loss.item()) < 1e-6 and gradient.abs().max() < 1e-7


def test_divergence_is_its_equation() -> None:
    student, teacher = logits(1)[0].double(), torch.softmax(logits(2)[0].double(), dim=1)
    expected = (teacher * (teacher.log() - torch.log_softmax(student, dim=1))).sum(1).mean()
    torch.testing.assert_close(divergence(student, teacher), expected)


@pytest.mark.parametrize("ensemble", [mean_logits, mean_probabilities])
def test_ensembles(ensemble: Any) -> None:
    first, two, three = logits(1, 2, 3)
    torch.testing.assert_close(ensemble([first, first, first]), torch.softmax(first, dim=1))
    torch.testing.assert_close(ensemble([first, two, three]), ensemble([three, first, two]))
    torch.testing.assert_close(ensemble([first, two]).sum(1), torch.ones(len(first)))
    assert (mean_logits([first, two]) - mean_probabilities([first, two])).abs().max() > 0.01


def test_sharpening() -> None:
    p = mean_probabilities(logits(1, 2))
    torch.testing.assert_close(sharpened(p, 1.0), p)
    torch.testing.assert_close(sharpened(p, 0.5), p**2 / (p**2).sum(1, keepdim=True))
    torch.testing.assert_close(
        sharpened(p, 1e-6), torch.nn.functional.one_hot(p.argmax(1), CLASSES).float()
    )


# ---- the models that FedBE draws -------------------------------------------------------------------------------------


def test_gaussian_of_one_client_is_that_client() -> None:
    drawn = gaussian(state_of(50), [state_of(1)], 0.1, draws(0))
    for name, tensor in drawn.items():
        torch.testing.assert_close(tensor, state_of(1)[name])


def test_gaussian_without_noise_is_the_mean_direction() -> None:
    """w^t + mean norm * mean unit step, tensor by tensor."""
    start, clients = state_of(50), [state_of(seed) for seed in (1, 2, 3)]
    for name, tensor in gaussian(start, clients, 0.0, draws(0)).items():
        steps = [client[name] - start[name] for client in clients]
        direction = sum(step / step.norm() for step in steps) / 3
        torch.testing.assert_close(
            tensor, start[name] + sum(step.norm() for step in steps) / 3 * direction
        )


def test_gaussian_noise_has_its_variance() -> None:
    generator, name = draws(3), "features.0.weight"
    start, *clients = [{name: state_of(seed)[name]} for seed in (50, 1, 2, 3)]
    many = torch.stack([gaussian(start, clients, 0.1, generator)[name] for _ in range(4000)])
    steps = torch.stack([client[name] - start[name] for client in clients])
    norms = steps.flatten(1).norm(dim=1)
    expected = 0.1 * norms.mean() * (steps / norms[:, None, None]).std(0, correction=0)
    torch.testing.assert_close(many.std(0), expected, rtol=0.06, atol=0)


@pytest.mark.parametrize("distribution", ["gaussian", "dirichlet"])
def test_drawn_models_take_the_buffers_of_the_mean(server: Server, distribution: str) -> None:
    clients = [state_of(seed) for seed in (1, 2, 3)]
    mean = weighted_mean(clients, [1.0, 1.0, 1.0])
    drawn = FedBE(distribution=distribution, models=4).drawn(server, mean, clients)
    assert len(drawn) == 4 and len({digest([state]) for state in drawn}) == 4
    for state in drawn:
        assert state.keys() == mean.keys()
        assert all(torch.equal(state[name], mean[name]) for name in mean.keys() - server.parameters)
    assert FedBE(distribution=distribution, models=0).drawn(server, mean, clients) == []


def test_dirichlet_draws_lie_in_the_simplex(server: Server) -> None:
    """Clients whose biases are unit vectors show the weights of the mixture."""
    clients = [{**state_of(k), "head.bias": torch.eye(CLASSES)[k]} for k in range(3)]
    mean = weighted_mean(clients, [1.0, 1.0, 1.0])
    for concentration, largest in ((1e6, 0.34), (1.0, 1.0), (1e-4, 1.0)):
        method = FedBE(distribution="dirichlet", models=50, concentration=concentration)
        weights = torch.stack([state["head.bias"] for state in method.drawn(server, mean, clients)])
        assert (weights >= 0).all() and weights.max() <= largest + 1e-6 and not weights[:, 3].any()
        torch.testing.assert_close(weights.sum(1), torch.ones(50))
        if concentration == 1e6:
            torch.testing.assert_close(
                weights[:, :3], torch.full((50, 3), 1 / 3), rtol=0, atol=0.005
            )
        if concentration == 1e-4:
            assert (weights.max(1).values > 0.99).float().mean() > 0.9


# ---- the student's steps ---------------------------------------------------------------------------------------------


def test_adam_is_torch_s() -> None:
    ours, theirs = ([p.detach().clone() for p in model_of().parameters()] for _ in range(2))
    optimizer, reference = Adam(ours), torch.optim.Adam(theirs, lr=1.0)
    for number in range(7):
        gradients = [
            torch.randn(p.shape, generator=draws(10 * number + k)) for k, p in enumerate(ours)
        ]
        optimizer.step(gradients, cosine(0.01, number, 7))
        reference.param_groups[0]["lr"] = cosine(0.01, number, 7)
        for weight, gradient in zip(theirs, gradients, strict=True):
            weight.grad = gradient
        reference.step()
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-7)


def test_cosine() -> None:
    rates = [cosine(0.2, step, 10) for step in range(10)]
    assert (
        rates[0] == 0.2 and rates[5] == pytest.approx(0.1) and rates == sorted(rates, reverse=True)
    )
    assert rates[9] == pytest.approx(0.1 * (1 + math.cos(0.9 * math.pi)))


def test_clip() -> None:
    gradients = [torch.tensor([3.0, 0.0]), torch.tensor([4.0])]
    torch.testing.assert_close(clip(gradients, 1.0), [g / 5 for g in gradients])
    assert all(
        torch.equal(left, right)
        for left, right in zip(clip(gradients, 6.0), gradients, strict=True)
    )


def test_batches_are_epochs_without_a_single_sample() -> None:
    sizes = [len(part) for part in batches(9, 4, 5, draws(0))]
    assert sizes == [4, 5, 4, 5, 4]
    first = list(batches(9, 4, 2, draws(0)))
    assert sorted(torch.cat(first).tolist()) == list(range(9))
    assert [len(part) for part in batches(3, 128, 3, draws(0))] == [3, 3, 3]
    assert list(batches(9, 4, 0, draws(0))) == []


def test_swa_averages_the_weights_it_names(server: Server) -> None:
    """Of 8 steps, counted from 1, with average-start 1 and every 2: those after 3, 5 and 7."""
    settings = {"batch_size": 8, "learning_rate": 0.1}
    after = {
        s: combined(server, FedBE, steps=s, average_start=99, **settings) for s in (3, 5, 7, 8)
    }
    averaged = combined(server, FedBE, steps=8, average_start=1, average_every=2, **settings)
    expected = weighted_mean([after[s] for s in (3, 5, 7)], [1.0] * 3)
    for name in server.parameters:
        assert torch.equal(averaged[name], expected[name])
    for name in averaged.keys() - server.parameters:
        assert torch.equal(averaged[name], after[8][name])  # buffers are those of the last step


def test_swa_averages_the_steps_of_the_authors_code(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After steps 125, 150, 175 and 200 of 200, with our settings as they are."""
    counted: list[int] = []

    class Counting(strategies.fedbe.SGD):
        def step(self, gradients: Iterable[torch.Tensor]) -> None:
            super().step(gradients)
            counted.append(len(counted) + 1)

    def averaged(states: Sequence[State], weights: Sequence[float]) -> dict[str, torch.Tensor]:
        assert len(states) == 4 and weights == [1.0] * 4
        return weighted_mean(states, weights)

    def kept(state: State) -> dict[str, torch.Tensor]:
        seen.append(counted[-1])
        return copy(state)

    seen: list[int] = []
    monkeypatch.setattr(strategies.fedbe, "SGD", Counting)
    monkeypatch.setattr(strategies.fedbe, "copy", kept)
    monkeypatch.setattr(strategies.fedbe, "weighted_mean", averaged)
    combined(server, FedBE, models=0, batch_size=40)
    assert seen == [125, 150, 175, 200] and counted[-1] == 200


def test_fedbe_s_student_has_momentum(server: Server) -> None:
    """Two full-batch steps from the mean: torch's SGD with momentum 0.9."""
    samples, model, updates = samples_of(), model_of(), updates_of(1, 2, 3)
    mean, _ = FedAvg().combine(server, {}, updates)
    states = [mean, *(update.shared for update in updates)]
    teacher = sharpened(
        mean_probabilities([logits_of(model, state, samples) for state in states]), 0.5
    )
    model.load_state_dict(mean)
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        divergence(model(samples.inputs_N), teacher).backward()
        optimizer.step()
    student = combined(server, FedBE, models=0, steps=2, batch_size=1000, learning_rate=0.1)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(student[name], parameter.detach(), rtol=1e-4, atol=1e-5)


def test_the_variance_scale_is_a_factor_on_the_noise(server: Server) -> None:
    clients = [state_of(seed) for seed in (1, 2, 3)]
    mean = weighted_mean(clients, [1.0, 1.0, 1.0])
    none, some, more = (
        FedBE(models=1, variance_scale=s).drawn(server, mean, clients)[0] for s in (0.0, 0.1, 0.3)
    )
    for name in server.parameters:
        torch.testing.assert_close(
            more[name] - none[name], 3 * (some[name] - none[name]), rtol=1e-4, atol=1e-5
        )
        assert not torch.equal(some[name], none[name])


@pytest.mark.parametrize("training", [True, False])
def test_teachers_are_in_eval_mode(training: bool) -> None:
    """A sample's logits do not depend on its batch, and the statistics are the state's."""
    samples, model = samples_of(), model_of().train(training)
    some = samples.only(torch.arange(3))
    assert torch.allclose(
        logits_of(model, state_of(1), samples)[:3], logits_of(model, state_of(1), some), atol=1e-6
    )
    assert digest([model.state_dict()]) == digest([state_of(1)])


def test_fedbe_takes_the_step_of_its_equation(server: Server) -> None:
    """One full-batch step from the mean; mean, clients and draws teach alike, and the teacher is sharpened."""
    samples, model, updates = samples_of(), model_of(), updates_of(1, 2, 3)
    mean, _ = FedAvg().combine(server, {}, updates)
    method = FedBE(
        models=2, variance_scale=3.0, steps=1, batch_size=1000, learning_rate=0.1, average_start=0
    )
    clients = [update.shared for update in updates]
    teachers = [mean, *clients, *method.drawn(server, mean, clients)]
    p = sum(torch.softmax(logits_of(model, state, samples), dim=1) for state in teachers) / 6
    teacher = p**2 / (p**2).sum(1, keepdim=True)  # T = 0.5
    model.load_state_dict(mean)
    divergence(model.train()(samples.inputs_N), teacher).backward()
    student, _ = method.combine(server, {}, updates)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(
            student[name], mean[name] - 0.1 * parameter.grad, rtol=1e-5, atol=1e-6
        )


def test_feddf_takes_the_steps_of_its_equation() -> None:
    """Full batches, so that no order matters; float64, as Adam blows up the rounding of a gradient that is zero."""
    single, model = samples_of(), model_of().double()
    samples = Samples(single.inputs_N.double(), single.labels_N, single.mean, single.std)
    states = [
        {n: t.double() if t.is_floating_point() else t for n, t in state_of(s).items()}
        for s in (1, 2, 3)
    ]
    updates = [Update(k, state, 10 * (k + 1)) for k, state in enumerate(states)]
    teacher = torch.softmax(
        torch.stack([logits_of(model, state, samples) for state in states]).mean(0), dim=1
    )
    model.load_state_dict(FedAvg().combine(server_of(), {}, updates)[0])
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    for _ in range(4):
        optimizer.zero_grad()
        divergence(model(samples.batch(torch.arange(len(samples)))), teacher).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        schedule.step()
    server = replace(server_of(samples), model=model_of().double())
    method = FedDF(steps=4, batch_size=1000, learning_rate=0.01, gradient_norm=0.01)
    student, _ = method.combine(server, {}, updates)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(student[name], tensor, rtol=1e-8, atol=1e-8)


def test_distill_stays_where_the_teacher_is_the_student(server: Server) -> None:
    """In train mode batch norm moves its statistics, so the student's own outputs in train mode are the teacher."""
    samples, model = samples_of(), model_of()
    teacher = torch.softmax(model.train()(samples.inputs_N).detach(), dim=1)
    norms = []
    distill(
        model,
        samples,
        teacher,
        1000,
        1,
        draws(0),
        lambda _, gradients: norms.extend(g.norm() for g in gradients),
    )
    assert torch.stack(norms).max() < 1e-6
