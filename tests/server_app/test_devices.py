"""Which device a client takes, and what is said where GPUs are hidden from it."""

import pytest
import torch

from client_app.assignment import choose_device
from server_app.app import hidden_gpus


@pytest.mark.parametrize(
    ("wanted", "seen", "expected"), [("auto", True, "cuda"), ("auto", False, "cpu"), ("cpu", True, "cpu")]
)
def test_auto_takes_what_it_sees(monkeypatch: pytest.MonkeyPatch, wanted: str, seen: bool, expected: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: seen)
    assert choose_device(wanted) == expected


@pytest.mark.parametrize(("visible", "remedy"), [("", "client-resources-num-gpus"), (None, "device = cpu")])
def test_cuda_without_a_gpu_is_an_error_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, remedy: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(ValueError, match=rf"device = 'cuda': .*{remedy}"):
        choose_device("cuda")


@pytest.mark.parametrize(
    ("device", "here", "clients", "told"),
    [
        ("auto", True, ["cpu", "cpu"], True),
        ("auto", True, ["cpu", "cuda"], False),
        ("auto", False, ["cpu"], False),
        ("cpu", True, ["cpu"], False),
    ],
)
def test_hidden_gpus_are_told_of(
    monkeypatch: pytest.MonkeyPatch, device: str, here: bool, clients: list[str], told: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: here)
    assert ("client-resources-num-gpus" in hidden_gpus(device, [{"device": client} for client in clients])) == told
