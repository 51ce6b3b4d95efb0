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
from client_app.process import choose_device, make_deterministic
from fedskew.sweep import refuse_missing_gpus


def test_a_device_is_what_is_seen_or_an_error_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for is_seen, taken in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda is_seen=is_seen: is_seen)
        assert (choose_device("auto"), choose_device("cpu")) == (taken, "cpu")
    with pytest.raises(ValueError) as refused:
        choose_device("cuda")
    assert "device = cpu" in str(refused.value) and "--client-gpus" in str(refused.value)


@pytest.mark.parametrize("names", [[], ["demo-missing", "--seed", "0"]])
def test_a_missing_gpu_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fedskew: FedSkew, names: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    command = ["run", *names, "--set", "rounds=1", "--results", tmp_path]
    code, _, errors = fedskew(*command, "--set", "device=cuda")
    assert code == 2 and errors.startswith("fedskew: device = 'cuda': no GPU is visible here")
    assert not list(tmp_path.iterdir())


def test_a_gpu_that_is_there_or_that_ray_may_give_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seen, engine in ((True, "inprocess"), (False, "ray")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda seen=seen: seen)
        refuse_missing_gpus([small(tmp_path, device="cuda")], engine)


@pytest.mark.parametrize("other", [client_app.handlers, server_app.app])
def test_server_and_clients_hold_cudnn_to_deterministic_algorithms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: ModuleType
) -> None:
    """Each asks for them where the other does not."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(other, "make_deterministic", lambda threads=1: None)
    experiment(tmp_path, rounds=1)
    assert torch.backends.cudnn.deterministic


def test_a_process_with_a_gpu_takes_deterministic_algorithms_and_no_tf32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    asked: list[bool] = []
    monkeypatch.setattr(
        torch, "use_deterministic_algorithms", lambda on, warn_only: asked.append(on and warn_only)
    )
    make_deterministic()
    assert asked == [True], "an operation without one must not end the run"
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert not torch.backends.cudnn.allow_tf32
