"""The memory-mapped copy of a data set: kept by content and shape, made anew where it is damaged."""

from dataclasses import replace

import numpy as np
import pytest
from layouts import write_npz

from data import DataError, DataSettings, load
from data.readers import cache


def test_memory_mapped_and_read_only():
    data = load(DataSettings())
    assert isinstance(data.train.inputs, np.memmap) and not data.train.inputs.flags.writeable


def test_the_second_writer_leaves_the_first_ones_copy(tmp_path):
    folder = tmp_path / "cache" / "copy"
    cache.write(folder, {"train_inputs": np.zeros(3)})
    cache.write(folder, {"train_inputs": np.ones(3)})
    arrays, _ = cache.read(folder)
    assert arrays["train_inputs"].tolist() == [0, 0, 0]
    assert [path.name for path in folder.parent.iterdir()] == ["copy"]


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    setting = str(tmp_path / "file" / "cache")
    with pytest.raises(DataError) as caught:
        load(DataSettings(cache=setting))
    assert (caught.value.key, caught.value.value) == ("cache", setting)


def turn_subjects(folder):
    file = folder / "train_subjects.npy"
    np.save(file, np.load(file)[::-1])


HARMS = {
    "emptied": lambda folder: (folder / "train_inputs.npy").write_bytes(b""),
    "no text": lambda folder: (folder / "dataset.json").unlink(),
    "subjects": turn_subjects,
}


def subjects(folder):
    """A file of 2,000 bytes of pixels whose samples name their subjects."""
    number = 100
    write_npz(
        folder / "own.npz", (8, 8), number, 10, classes=2,
        train_subjects=np.arange(number) % 10, test_subjects=np.arange(10) + 10,
    )  # fmt: skip
    return DataSettings(f"npz:{folder}/own.npz", classes="2", input_shape="1x8x8")


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_copy_is_made_anew(tmp_path, own_cache, caplog, harm):
    settings = subjects(tmp_path)
    before = load(settings)
    inputs, groups = np.array(before.train.inputs), before.train.subjects
    (folder,) = own_cache.iterdir()
    del before  # to map a file that another one cuts is a bus error
    HARMS[harm](folder)
    after = load(settings)
    assert np.array_equal(after.train.inputs, inputs)
    assert np.array_equal(after.train.subjects, groups)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_changed_files_and_another_shape_make_another_copy(tmp_path, own_cache):
    settings = DataSettings("mnist", str(tmp_path))
    write_npz(tmp_path / "mnist.npz")
    load(settings)
    write_npz(tmp_path / "mnist.npz", train=30)
    assert len(load(settings).train.labels) == 30
    load(replace(settings, input_shape="1x14x14"))
    load(replace(settings, mean="0.5"))  # normalization is no part of the copy
    assert len(list(own_cache.iterdir())) == 3
