"""Files of tensors say what they are, and a file of another run is refused."""

from pathlib import Path

import pytest
import torch

from client_app import tensor_files
from client_app.runtime import on_device


def test_eighty_characters_of_another_file_s_name_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensor_files.write_atomically(path, {"w": torch.ones(2)}, {"run": "r" * 100})
    with pytest.raises(tensor_files.Damaged, match=r"its run is 'r{80}', not 'mine'$"):
        tensor_files.read(path, {"run": "mine"})


def test_a_state_moves_to_the_device() -> None:
    state = {"w": torch.ones(2)}
    assert on_device(state, "cpu") is state
    assert on_device(state, "meta")["w"].device.type == "meta"
