"""The memory protocol: the server names the round, the client keeps that file and those before; files of tensors."""

from pathlib import Path

import pytest
import torch
from client_builders import same
from safetensors import SafetensorError
from safetensors.torch import save_file

from client_app import tensor_files
from client_app.memory import MemoryLost, file_of, folder_of, load, prune, save
from client_app.state import on_device
from client_app.tensor_files import Damaged, WriteFailed, write_atomically

Memory = dict[str, dict[str, torch.Tensor]]


def kept(value: float) -> Memory:
    return {
        "private": {
            "features.1.counter": torch.tensor(4),
            "matrix": value * torch.arange(6.0).reshape(2, 3).T,
        },
        "other": {
            "a/b": torch.full((2, 2), value, dtype=torch.float64),
            "empty": torch.empty(0, 2),
        },
    }


def equal(left: Memory, right: Memory) -> bool:
    return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)


def rounds_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def names_of(*rounds: int) -> list[str]:
    return [file_of(Path(), round).name for round in rounds]


def test_what_is_saved_is_loaded_by_its_round_and_digest(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, 12)
    assert load(folder, 0) == {} and save(folder, 1, {}) == ""
    assert not folder.exists(), "nothing to keep writes nothing"
    first, second = save(folder, 1, kept(1.0)), save(folder, 2, kept(2.0))
    assert len(first) == 64 and save(tmp_path / "elsewhere", 5, kept(1.0)) == first
    assert equal(load(folder, 1, expected_digest=first), kept(1.0))
    assert equal(load(folder, 2), kept(2.0))
    assert load(folder, 0) == {}, "the server says that nothing counts yet"
    with pytest.raises(Damaged):
        load(folder, 1, expected_digest=second)
    with pytest.raises(MemoryLost) as lost:
        load(folder, 3)
    assert str(file_of(folder, 3)) in str(lost.value)


def test_two_files_before_the_one_that_counts_are_kept_and_none_after_it(tmp_path: Path) -> None:
    """Checkpoints before may still name them; a later one is of a reply that was lost."""
    for round in (1, 2, 4, 5, 6):
        save(tmp_path, round, kept(float(round)))
    (tmp_path / ".round-00002.safetensors").write_bytes(b"left by a kill while writing")
    (tmp_path / "notes").write_text("somebody's")
    prune(tmp_path, 5)
    assert rounds_in(tmp_path) == ["notes", *names_of(2, 4, 5)]
    save(tmp_path, 7, kept(7.0))
    prune(tmp_path, 7)
    assert rounds_in(tmp_path) == ["notes", *names_of(4, 5, 7)]
    prune(tmp_path, 0)
    assert rounds_in(tmp_path) == ["notes"]
    prune(tmp_path / "nowhere", 3)


def test_a_file_counts_for_its_own_client_round_and_run_alone(tmp_path: Path) -> None:
    folders = [folder_of(tmp_path / run, client) for run, client in (("a", 1), ("a", 2), ("b", 1))]
    for folder in folders:
        save(folder, 1, kept(1.0))
        save(folder, 2, kept(2.0))
    right = file_of(folders[0], 2)
    contents = [file_of(folders[1], 2), file_of(folders[0], 1), file_of(folders[2], 2)]
    checkpoint, unchecked = tmp_path / "checkpoint", tmp_path / "unchecked"
    write_atomically(checkpoint, {"private/x": torch.ones(1)}, {"kind": "checkpoint"})
    save_file({"private/x": torch.ones(1)}, unchecked, {"kind": "memory"})  # without a checksum
    for other in (*contents, checkpoint, unchecked):
        right.write_bytes(other.read_bytes())
        with pytest.raises(Damaged):
            load(folders[0], 2)


@pytest.mark.parametrize("place", [5, 300, -1])
@pytest.mark.parametrize("change", ["cut", "bit"])
def test_a_damaged_file_is_noticed(tmp_path: Path, place: int, change: str) -> None:
    path = tmp_path / "state.safetensors"
    write_atomically(path, {"x": torch.arange(100.0)}, {"why": "first"})
    assert tensor_files.read(path)[1] == {"why": "first"}
    content = bytearray(path.read_bytes())
    if change == "cut":
        del content[place:]
    else:
        content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(Damaged):
        tensor_files.read(path)


@pytest.mark.parametrize("error", [OSError("no space"), SafetensorError("no space")])
def test_a_write_that_fails_leaves_the_old_file_and_no_partial_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    path, previous = tmp_path / "state.safetensors", tmp_path / "previous.safetensors"
    for value in (1.0, 2.0, 3.0):
        write_atomically(path, {"x": torch.tensor(value)}, previous=previous, flush=value == 3.0)

    def half_written(tensors: object, file: Path, *of: object) -> None:
        Path(file).write_bytes(b"half")
        assert path.exists(), "the old file is there while the new one is written"
        raise error

    monkeypatch.setattr(tensor_files, "save_file", half_written)
    with pytest.raises(WriteFailed) as caught:
        write_atomically(path, {"x": torch.zeros(2)})
    assert str(path) in str(caught.value) and "no space" in str(caught.value)
    assert rounds_in(tmp_path) == [previous.name, path.name]
    assert [tensor_files.read(file)[0]["x"].item() for file in (previous, path)] == [2.0, 3.0]
    with pytest.raises(WriteFailed):
        write_atomically(path / "below.safetensors", {"x": torch.ones(2)})


def test_tensors_of_a_file_are_aligned_as_all_others_are(tmp_path: Path) -> None:
    """Within the file they are not, and a matrix product's last bits depend on it."""
    for length in range(0, 20, 4):  # of the head, which comes before the tensors
        tensors = {"a": torch.ones(3), "b": torch.ones(5, 3)}
        write_atomically(tmp_path / "file", tensors, {"why": "x" * length})
        for tensor in tensor_files.read(tmp_path / "file")[0].values():
            assert tensor.data_ptr() % 16 == 0


def test_a_state_moves_to_the_device() -> None:
    state = {"w": torch.ones(2)}
    assert on_device(state, "cpu")["w"] is state["w"]
    assert on_device(state, "meta")["w"].device.type == "meta"
