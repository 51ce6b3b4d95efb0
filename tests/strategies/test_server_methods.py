"""FedAvg, tau-normalization and the sum of integers, against their equations."""

from dataclasses import replace

import pytest
import torch
from server_builders import server_of, updates_of

from client_app.state import State
from data import SettingError
from strategies.core.questions import integer_sum
from strategies.core.server import Server
from strategies.fedavg import FedAvg
from strategies.tau_norm import TauNorm

COUNTER = "features.1.num_batches_tracked"


@pytest.fixture
def server() -> Server:
    return server_of(clients=5, examples_by_client={0: 100, **dict.fromkeys(range(1, 5), 0)})


# ---- FedAvg ----------------------------------------------------------------------------------------------------------


def test_fedavg_is_the_weighted_mean(server: Server) -> None:
    updates = []
    for update in updates_of(1, 2, 3):
        steps = {COUNTER: torch.tensor(5 + update.client)}
        updates.append(replace(update, shared={**update.shared, **steps}))
    shared, state = FedAvg().combine(server, {}, updates)
    for name, tensor in shared.items():
        if name == COUNTER:
            assert (
                tensor == 7 and tensor.dtype == torch.int64
            )  # the largest: a counter is not averaged
        else:
            expected = sum(u.examples / 60 * u.shared[name].double() for u in updates)
            torch.testing.assert_close(tensor, expected.float(), rtol=1e-6, atol=1e-7)
            assert tensor.dtype == torch.float32
    assert state == {}


def test_weighting_over_all_damp_the_step(server: Server) -> None:
    """w + sum_i |D_i| / |D| (w_i - w), with 60 of 100 samples taking part."""
    updates = updates_of(1, 2, 3)
    damped, _ = FedAvg(weighting="all").combine(server, {}, updates)
    mean, _ = FedAvg().combine(server, {}, updates)
    for name in server.parameters:
        expected = server.start[name] + 0.6 * (mean[name] - server.start[name])
        torch.testing.assert_close(damped[name], expected, rtol=1e-5, atol=1e-6)


def test_weighting_over_all_need_the_number_of_samples(server: Server) -> None:
    unknown = replace(server, examples_by_client={})
    with pytest.raises(SettingError) as refused:
        FedAvg(weighting="all").combine(unknown, {}, updates_of(1, 2))
    assert refused.value.key == "fedavg.weighting"


# ---- tau-normalization -----------------------------------------------------------------------------------------------


def normalized(server: Server, tau: float, shared: State) -> State:
    return TauNorm(tau).deploy(server, {}, shared, []).models["tau-norm"]


@pytest.mark.parametrize("tau", [0.0, 0.5, 2.0])
def test_norms_after_tau_normalization(server: Server, tau: float) -> None:
    deployed, norms = normalized(server, tau, server.start), server.start["head.weight"].norm(dim=1)
    torch.testing.assert_close(deployed["head.weight"].norm(dim=1), norms ** (1 - tau))
    direction = torch.cosine_similarity(deployed["head.weight"], server.start["head.weight"])
    torch.testing.assert_close(direction, torch.ones(4))
    for name in deployed.keys() - {"head.weight"}:
        assert torch.equal(deployed[name], server.start[name])  # the bias is kept


def test_tau_normalization_of_a_zero_row(server: Server) -> None:
    shared = {**server.start, "head.weight": torch.arange(4.0)[:, None].expand(4, 5)}
    assert torch.isfinite(normalized(server, 1.0, shared)["head.weight"]).all()


# ---- integers, and what a state may be -------------------------------------------------------------------------------


def test_sum_of_masked_integers_is_the_sum() -> None:
    """Masks that cancel modulo 2^64, however large: no sum of floats would survive them."""
    masks = torch.randint(-(2**63), 2**63 - 1, (3, 2), generator=torch.Generator().manual_seed(0))
    counts = torch.tensor([[k, 2**40 * k] for k in range(4)])
    masked = counts + torch.cat([masks, -masks.sum(0, keepdim=True)])
    assert (masked != counts).all()
    for answers in (counts, masked):
        total = integer_sum({k: {"counts": answer} for k, answer in enumerate(answers)})
        assert total["counts"].tolist() == [6, 6 * 2**40]


def test_a_method_fills_the_place_it_names(server: Server) -> None:
    with pytest.raises(TypeError):
        TauNorm().combine(server, {}, [])
    with pytest.raises(TypeError):
        FedAvg().deploy(server, {}, {}, [])
