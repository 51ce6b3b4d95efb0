"""Which device a client takes, and what is said where GPUs are hidden from it."""

import os
from pathlib import Path
from types import ModuleType

import pytest
import torch
from command_line import FedSkew
from in_process import experiment, small

import client_app.handlers
import server_app.app
from client_app.process import choose_device, hidden_gpus, make_deterministic
from fedskew.sweep import refuse_missing_gpus


@pytest.mark.parametrize(
    ("wanted", "seen", "expected"),
    [("auto", True, "cuda"), ("auto", False, "cpu"), ("cpu", True, "cpu")],
)
def test_auto_takes_what_it_sees(
    monkeypatch: pytest.MonkeyPatch, wanted: str, seen: bool, expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: seen)
    assert choose_device(wanted) == expected


@pytest.mark.parametrize(
    ("visible", "remedy"), [("", "client-resources-num-gpus"), (None, "device = cpu")]
)
def test_cuda_without_a_gpu_is_an_error_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, remedy: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(ValueError, match=rf"device = 'cuda': .*{remedy}"):
        choose_device("cuda")


@pytest.mark.parametrize("names", [[], ["demo-missing", "--seed", "0"]])
def test_a_missing_gpu_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fedskew: FedSkew, names: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    command = ["run", *names, "--set", "rounds=1", "--results", tmp_path]
    sentence = "fedskew: device = 'cuda': no GPU is visible here: use device = cpu, or a machine with one\n"
    assert fedskew(*command, "--set", "device=cuda")[::2] == (2, sentence)
    assert not list(tmp_path.iterdir())
    assert fedskew(*command, "--engine", "inprocess", "--set", "device=cpu")[0] == 0
    assert fedskew(*command, "--set", "device=cuda")[0] == 0, "finished runs need no GPU"


def test_a_gpu_that_is_there_or_that_ray_may_give_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seen, engine in ((True, "inprocess"), (False, "ray")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda seen=seen: seen)
        refuse_missing_gpus([small(tmp_path, device="cuda")], engine)


@pytest.mark.parametrize(
    ("device", "here", "clients", "hidden"),
    [
        ("auto", True, ["cpu", "cpu"], True),
        ("auto", True, ["cpu", "cuda"], False),
        ("auto", False, ["cpu"], False),
        ("cpu", True, ["cpu"], False),
    ],
)
def test_hidden_gpus_are_told_of(
    monkeypatch: pytest.MonkeyPatch, device: str, here: bool, clients: list[str], hidden: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: here)
    assert (
        "client-resources-num-gpus"
        in hidden_gpus(device, [{"device": client} for client in clients])
    ) == hidden


@pytest.mark.parametrize(
    ("module", "other"),
    [(client_app.handlers, server_app.app), (server_app.app, client_app.handlers)],
)
def test_server_and_clients_hold_cudnn_to_deterministic_algorithms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, other: ModuleType
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(other, "make_deterministic", lambda threads=1: None)
    experiment(tmp_path, rounds=1)
    assert torch.backends.cudnn.deterministic, f"{module.__name__} asks for them"


def test_a_process_with_a_gpu_takes_deterministic_algorithms_and_no_tf32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    torch.use_deterministic_algorithms(False)
    try:
        make_deterministic()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert not torch.backends.cudnn.allow_tf32
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
