"""Files of tensors say what they are, and a file of another run is refused."""

from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

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


def test_what_cannot_be_written_is_named_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {"w": torch.ones(2)}
    file = tmp_path / "file"
    file.write_text("")
    below = file / "model.safetensors"
    with pytest.raises(
        tensor_files.WriteFailed, match=rf"^{below} cannot be written: \w.* exists$"
    ):
        tensor_files.write_atomically(below, tensors)

    path, previous = tmp_path / "model.safetensors", tmp_path / "previous"
    tensor_files.write_atomically(path, tensors)
    previous.mkdir()
    with pytest.raises(tensor_files.WriteFailed, match=rf"^{previous} cannot be written: Is a dir"):
        tensor_files.write_atomically(path, tensors, previous=previous)

    def full(*of: object) -> None:
        raise SafetensorError("no space is left")

    monkeypatch.setattr(tensor_files, "save_file", full)
    with pytest.raises(tensor_files.WriteFailed, match=rf"^{path} cannot be written: no space is"):
        tensor_files.write_atomically(path, tensors)
    assert sorted(tmp_path.iterdir()) == [file, path, previous], "no part of a file is left"
