"""What FedSkew asks of every method, and what is special about these."""

import pytest
import torch
from my_fedskew_methods import Tempered

import fedskew
from fedskew.methods import Client, Samples


@pytest.mark.parametrize("name", ["tempered", "even-mean"])
def test_the_contract_holds(name: str) -> None:
    assert fedskew.check_method(name).name == name


def test_a_power_of_zero_is_plain_training() -> None:
    labels_N = torch.tensor([0, 1, 1])
    samples = Samples(torch.zeros(3, 1), labels_N, torch.zeros(1), torch.ones(1))
    client = Client(id=0, model=None, samples=samples, num_classes=2)
    weights = [
        Tempered(power).loss_weights(client, torch.zeros(3, 2), labels_N) for power in (0.0, 1.0)
    ]
    assert torch.equal(weights[0], torch.ones(3)) and weights[1][0] > 1 > weights[1][1]
