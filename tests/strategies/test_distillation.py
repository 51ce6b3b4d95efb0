"""FedDF and FedBE: ensembles, the models that FedBE draws, and the student's steps, against their equations."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from server_builders import draws, model_of, samples_of, server_of, state_of, updates_of

from client_app.models import Classifier
from client_app.state import State, digest, weighted_mean
from data import Samples, SettingError
from strategies import fedbe, feddf
from strategies.core.server import Server, ServerMethod, Update
from strategies.fedavg import FedAvg
from strategies.fedbe import FedBE, gaussian
from strategies.feddf import FedDF, batches


@pytest.fixture
def server() -> Server:
    return server_of(samples_of())


def combined(server: Server, kind: type[ServerMethod], *seeds: int, **settings: Any) -> State:
    return kind(**settings).combine(server, {}, updates_of(*(seeds or (1, 2, 3))))[0]


# ---- both ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FedDF, FedBE])
def test_no_steps_are_fedavg(server: Server, kind: type[ServerMethod]) -> None:
    mean, _ = FedAvg().combine(server, {}, updates_of(1, 2, 3))
    assert digest([combined(server, kind, steps=0)]) == digest([mean])


@pytest.mark.parametrize("kind", [FedDF, FedBE])
def test_a_round_is_drawn_from_seed_and_round_and_looks_at_no_label(
    kind: type[ServerMethod],
) -> None:
    settings, samples = {"steps": 5, "batch_size": 8}, samples_of()
    unlabeled = replace(samples, labels_N=samples.labels_N.flip(0))
    servers = {
        "first": server_of(samples),
        "again": server_of(unlabeled),
        "round": server_of(samples, round=2),
        "seed": server_of(samples, seed=1),
    }
    servers["again"].model.load_state_dict(state_of(9))  # the scratchpad's weights have no meaning
    codes = {name: digest([combined(s, kind, **settings)]) for name, s in servers.items()}
    assert codes["first"] == codes["again"]
    assert len({*codes.values()}) == 3
    with pytest.raises(SettingError) as refused:
        combined(server_of(), kind, **settings)
    assert refused.value.key == "holdout-per-class"


# ---- ensembles -------------------------------------------------------------------------------------------------------


def logits_by_torch(model: Classifier, state: State, samples: Samples) -> torch.Tensor:
    model.load_state_dict(state)
    with torch.no_grad():
        return model.eval()(samples.batch(torch.arange(len(samples))))


def divergence_by_torch(logits_NC: torch.Tensor, teacher_NC: torch.Tensor) -> torch.Tensor:
    return F.kl_div(torch.log_softmax(logits_NC, dim=1), teacher_NC, reduction="batchmean")


# ---- the models that FedBE draws -------------------------------------------------------------------------------------


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


def test_drawn_models_take_the_buffers_of_the_mean(server: Server) -> None:
    clients = [state_of(seed) for seed in (1, 2, 3)]
    mean = weighted_mean(clients, [1.0, 1.0, 1.0])
    drawn = FedBE(models=4).drawn(server, mean, clients)
    assert len(drawn) == 4 and len({digest([state]) for state in drawn}) == 4
    for state in drawn:
        assert state.keys() == mean.keys()
        assert all(torch.equal(state[name], mean[name]) for name in mean.keys() - server.parameters)
    assert FedBE(models=0).drawn(server, mean, clients) == []


# ---- the student's steps ---------------------------------------------------------------------------------------------


def test_batches_are_epochs_without_a_single_sample() -> None:
    sizes = [len(part) for part in batches(9, 4, 5, draws(0))]
    assert sizes == [4, 5, 4, 5, 4]
    first = list(batches(9, 4, 2, draws(0)))
    assert sorted(torch.cat(first).tolist()) == list(range(9))
    assert [len(part) for part in batches(3, 128, 3, draws(0))] == [3, 3, 3]
    assert list(batches(9, 4, 0, draws(0))) == []


def test_swa_averages_the_weights_it_names(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 8 steps, counted from 1, from step 1 on and every 2: those after 3, 5 and 7.

    The authors' code averages those after steps 125, 150, 175 and 200 of 200.
    """
    assert (fedbe.AVERAGE_START, fedbe.AVERAGE_EVERY, FedBE().steps) == (100, 25, 200)
    settings = {"batch_size": 8, "learning_rate": 0.1}
    after = {s: combined(server, FedBE, steps=s, **settings) for s in (3, 5, 7, 8)}
    monkeypatch.setattr(fedbe, "AVERAGE_START", 1)
    monkeypatch.setattr(fedbe, "AVERAGE_EVERY", 2)
    averaged = combined(server, FedBE, steps=8, **settings)
    expected = weighted_mean([after[s] for s in (3, 5, 7)], [1.0] * 3)
    for name in server.parameters:
        assert torch.equal(averaged[name], expected[name])
    for name in averaged.keys() - server.parameters:
        assert torch.equal(averaged[name], after[8][name])  # buffers are those of the last step


def test_fedbe_takes_the_step_of_its_equation(server: Server) -> None:
    """Two full-batch steps from the mean, with momentum 0.9; mean, clients and draws teach alike, sharpened."""
    samples, model, updates = samples_of(), model_of(), updates_of(1, 2, 3)
    mean, _ = FedAvg().combine(server, {}, updates)
    method = FedBE(models=2, variance_scale=3.0, steps=2, batch_size=1000, learning_rate=0.1)
    clients = [update.shared for update in updates]
    teachers = [mean, *clients, *method.drawn(server, mean, clients)]
    p = sum(torch.softmax(logits_by_torch(model, state, samples), dim=1) for state in teachers) / 6
    teacher = p**2 / (p**2).sum(1, keepdim=True)  # T = 0.5
    model.load_state_dict(mean)
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        divergence_by_torch(model(samples.inputs_N), teacher).backward()
        optimizer.step()
    student, _ = method.combine(server, {}, updates)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(student[name], parameter.detach(), rtol=1e-4, atol=1e-5)


def test_feddf_takes_the_steps_of_its_equation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full batches, so that no order matters; float64, as Adam blows up the rounding of a gradient that is zero."""
    single, model = samples_of(), model_of().double()
    samples = Samples(single.inputs_N.double(), single.labels_N, single.mean, single.std)
    states = [
        {n: t.double() if t.is_floating_point() else t for n, t in state_of(s).items()}
        for s in (1, 2, 3)
    ]
    updates = [Update(k, state, 10 * (k + 1)) for k, state in enumerate(states)]
    teacher = torch.softmax(
        torch.stack([logits_by_torch(model, state, samples) for state in states]).mean(0), dim=1
    )
    model.load_state_dict(FedAvg().combine(server_of(), {}, updates)[0])
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    for _ in range(4):
        optimizer.zero_grad()
        divergence_by_torch(model(samples.inputs_N), teacher).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        schedule.step()
    server = replace(server_of(samples), model=model_of().double())
    monkeypatch.setattr(feddf, "GRADIENT_NORM", 0.01)
    method = FedDF(steps=4, batch_size=1000, learning_rate=0.01)
    student, _ = method.combine(server, {}, updates)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(student[name], tensor, rtol=1e-8, atol=1e-8)
