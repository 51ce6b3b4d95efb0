"""Memory that processes share: what is read is what was written, and nothing of it stays."""

import gc
import os

import torch

from client_app.serialization import DTYPES
from fedskew.engines.shared_memory import ALIGNMENT, STEP, SharedMemory

STATES = [
    {name: torch.arange(5).to(dtype).reshape(5, 1)[:, [0, 0]] for name, dtype in DTYPES.items()},
    {},
    {
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "turned": torch.arange(6.0).reshape(2, 3).T,
    },
]


def test_another_process_reads_what_was_written_to_the_bit() -> None:
    memory = SharedMemory()
    other = SharedMemory(os.dup(memory.file))
    for region in (0, 7):
        places = memory.write(region, STATES)
        for written, read in zip(STATES, other.read(region, places), strict=True):
            assert written.keys() == read.keys()
            for name, tensor in written.items():
                assert tensor.dtype == read[name].dtype and tensor.shape == read[name].shape
                assert torch.equal(tensor, read[name]) and read[name].is_contiguous()
                assert read[name].data_ptr() % ALIGNMENT == 0 or not tensor.numel()


def test_a_region_grows_and_others_keep_what_they_hold() -> None:
    memory = SharedMemory()
    other = SharedMemory(os.dup(memory.file))
    small, large = {"a": torch.ones(3)}, {"a": torch.arange(float(STEP))}
    places = [memory.write(region, [small]) for region in (0, 1)]
    assert torch.equal(other.read(0, places[0])[0]["a"], small["a"])
    grown = memory.write(0, [large])
    assert torch.equal(other.read(0, grown)[0]["a"], large["a"])
    assert torch.equal(other.read(1, places[1])[0]["a"], small["a"])


def test_a_region_is_free_when_the_last_tensor_of_it_is_gone() -> None:
    memory = SharedMemory()
    region = memory.take()
    first, second = memory.read(
        region, memory.write(region, [{"a": torch.ones(2)}, {"b": torch.ones(2)}]), frees=True
    )
    kept = first.pop("a")[:1]
    del first, second
    gc.collect()
    assert memory.take() != region
    del kept
    gc.collect()
    assert memory.take() == region
