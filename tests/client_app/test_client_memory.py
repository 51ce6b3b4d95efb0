"""The memory protocol: the server names the round, the client keeps that file and the one before."""

from pathlib import Path

import pytest
import torch
from client_builders import same
from safetensors import safe_open
from safetensors.torch import save_file

from client_app import tensor_files
from client_app.memory import MemoryLost, file_of, folder_of
from client_app.memory import load as load_memory
from client_app.memory import prune as prune_memory
from client_app.memory import save as save_memory
from client_app.tensor_files import Damaged, write_atomically


def kept(value: float) -> dict[str, dict[str, torch.Tensor]]:
    return {
        "private": {
            "features.1.running_mean": torch.full((3,), value),
            "features.1.counter": torch.tensor(4),
        },
        "other": {
            "a/b": torch.full((2, 2), value, dtype=torch.float64),
            "empty": torch.empty(0, 2),
        },
    }


def equal(
    left: dict[str, dict[str, torch.Tensor]], right: dict[str, dict[str, torch.Tensor]]
) -> bool:
    return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)


def test_what_is_remembered_is_recalled(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, 12)
    assert folder.name == "client-00012"
    assert load_memory(folder, 0) == {}
    save_memory(folder, 1, kept(1.0))
    save_memory(folder, 2, kept(2.0))
    assert equal(load_memory(folder, 1), kept(1.0)) and equal(load_memory(folder, 2), kept(2.0))
    assert load_memory(folder, 0) == {}, "the server says that nothing counts yet"


def test_a_reply_that_was_lost_leaves_no_trace(tmp_path: Path) -> None:
    save_memory(tmp_path, 1, kept(1.0))
    save_memory(
        tmp_path, 2, kept(2.0)
    )  # this update never reached the server, which names round 1 again
    prune_memory(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == [file_of(tmp_path, 1).name]
    save_memory(tmp_path, 3, kept(3.0))
    assert equal(load_memory(tmp_path, 1), kept(1.0)) and equal(load_memory(tmp_path, 3), kept(3.0))
    for round in (4, 5):
        save_memory(tmp_path, round, kept(float(round)))
    prune_memory(tmp_path, 5)
    with pytest.raises(MemoryLost):
        load_memory(tmp_path, 1)


def test_a_round_played_again_overwrites(tmp_path: Path) -> None:
    save_memory(tmp_path, 4, kept(1.0))
    save_memory(tmp_path, 4, kept(2.0))
    assert equal(load_memory(tmp_path, 4), kept(2.0))


def test_round_zero_forgets_everything_and_a_missing_folder_is_no_error(tmp_path: Path) -> None:
    save_memory(tmp_path, 1, kept(1.0))
    (tmp_path / "somebody's notes.txt").write_text("keep")
    prune_memory(tmp_path, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["somebody's notes.txt"]
    prune_memory(tmp_path / "nowhere", 3)


def test_a_lost_file_is_named(tmp_path: Path) -> None:
    save_memory(tmp_path, 1, kept(1.0))
    with pytest.raises(MemoryLost) as caught:
        load_memory(tmp_path, 2)
    assert str(file_of(tmp_path, 2)) in str(caught.value) and "round 2" in str(caught.value)


def test_nothing_to_remember_writes_nothing(tmp_path: Path) -> None:
    save_memory(tmp_path / "folder", 1, {})
    assert not (tmp_path / "folder").exists()


def test_files_sort_by_round(tmp_path: Path) -> None:
    names = [file_of(tmp_path, round).name for round in (2, 10, 100, 99_999)]
    assert names == sorted(names)


def test_a_write_that_fails_leaves_the_old_file_and_no_partial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.safetensors"
    write_atomically(path, {"x": torch.ones(2)}, {"why": "first"})

    def half_written(tensors: object, filename: Path, metadata: object) -> None:
        Path(filename).write_bytes(b"half")
        assert path.exists(), "the old file is there while the new one is written"
        raise OSError("no space left")

    monkeypatch.setattr(tensor_files, "save_file", half_written)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, {"x": torch.zeros(2)})
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    with safe_open(path, "pt") as file:
        assert file.get_tensor("x").tolist() == [1, 1]
        assert file.metadata()["why"] == "first"


@pytest.mark.parametrize("place", [0.1, 0.5, 0.999])
@pytest.mark.parametrize("change", ["cut", "bit"])
def test_a_damaged_file_is_noticed_by_its_checksum(
    tmp_path: Path, place: float, change: str
) -> None:
    path = tmp_path / "state.safetensors"
    write_atomically(path, {"x": torch.arange(100.0)}, {"why": "first"})
    assert tensor_files.read(path)[1] == {"why": "first"}
    content = bytearray(path.read_bytes())
    where = int(place * len(content))
    path.write_bytes(
        content[:where]
        if change == "cut"
        else content[:where] + bytes([content[where] ^ 1]) + content[where + 1 :]
    )
    with pytest.raises(Damaged, match=r"state\.safetensors is damaged"):
        tensor_files.read(path)


def test_the_previous_file_is_kept(tmp_path: Path) -> None:
    path, previous = tmp_path / "state.safetensors", tmp_path / "previous.safetensors"
    for value in (1.0, 2.0, 3.0):
        write_atomically(path, {"x": torch.tensor(value)}, previous=previous)
    assert [tensor_files.read(file)[0]["x"].item() for file in (previous, path)] == [2.0, 3.0]


def test_the_memory_of_both_checkpoints_is_kept_while_the_next_is_being_written(
    tmp_path: Path,
) -> None:
    for round in (1, 2, 4, 5, 6):
        save_memory(tmp_path, round, kept(float(round)))
    prune_memory(
        tmp_path, 5
    )  # round 6's reply was lost; checkpoints before may still name rounds 4 and 2
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        file_of(tmp_path, round).name for round in (2, 4, 5)
    ]


def test_tensors_of_a_file_are_aligned_as_all_others_are(tmp_path: Path) -> None:
    """Within the file they are not, and a matrix product's last bits depend on it."""
    for length in range(0, 20, 4):  # of the head, which comes before the tensors
        write_atomically(
            tmp_path / "file", {"a": torch.ones(3), "b": torch.ones(5, 3)}, {"why": "x" * length}
        )
        for tensor in tensor_files.read(tmp_path / "file")[0].values():
            assert tensor.data_ptr() % 16 == 0


def test_transposed_tensors_are_written(tmp_path: Path) -> None:
    matrix = torch.arange(6.0).reshape(2, 3).T
    save_memory(tmp_path, 1, {"private": {"matrix": matrix}})
    assert torch.equal(load_memory(tmp_path, 1)["private"]["matrix"], matrix)


def test_a_file_counts_for_its_own_client_round_and_run_alone(tmp_path: Path) -> None:
    folders = [folder_of(tmp_path / run, client) for run, client in (("a", 1), ("a", 2), ("b", 1))]
    for folder in folders:
        save_memory(folder, 1, kept(1.0))
        save_memory(folder, 2, kept(2.0))
    right = file_of(folders[0], 2)
    for other, words in (
        (file_of(folders[1], 2), "its client is 'client-00002', not 'client-00001'"),
        (file_of(folders[0], 1), "its round is '1', not '2'"),
        (file_of(folders[2], 2), "its run is 'b', not 'a'"),
    ):
        right.write_bytes(other.read_bytes())
        with pytest.raises(Damaged, match=words):
            load_memory(folders[0], 2)
    write_atomically(right, {"private/x": torch.ones(1)}, {"kind": "checkpoint"})
    with pytest.raises(Damaged, match="its kind is 'checkpoint', not 'memory'"):
        load_memory(folders[0], 2)
    write_atomically(right, {"private/x": torch.ones(1)})  # as earlier versions wrote it
    assert load_memory(folders[0], 2)["private"]["x"].item() == 1
    save_file({"private/x": torch.ones(1)}, right, {"kind": "memory"})
    with pytest.raises(Damaged, match="its checksum is missing"):
        load_memory(folders[0], 2)


def test_a_memory_has_a_digest_and_counts_only_with_it(tmp_path: Path) -> None:
    assert save_memory(tmp_path, 1, {}) == ""
    first, second = save_memory(tmp_path, 1, kept(1.0)), save_memory(tmp_path, 2, kept(2.0))
    assert (
        len(first) == 64
        and first != second
        and save_memory(tmp_path / "elsewhere", 5, kept(1.0)) == first
    )
    assert equal(load_memory(tmp_path, 1, expected_digest=first), kept(1.0)) and equal(
        load_memory(tmp_path, 2), kept(2.0)
    )
    with pytest.raises(
        Damaged,
        match=r"round-000001.safetensors is whole, and not the memory that the server knows",
    ):
        load_memory(tmp_path, 1, expected_digest=second)


def test_what_a_kill_left_while_writing_is_deleted(tmp_path: Path) -> None:
    save_memory(tmp_path, 1, kept(1.0))
    (tmp_path / ".round-00002.safetensors").write_bytes(b"half")
    (tmp_path / "another").write_bytes(b"file")
    prune_memory(tmp_path, 1)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {file_of(tmp_path, 1).name, "another"}
