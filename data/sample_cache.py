"""The samples that a process keeps because somebody may ask for them again."""

from collections import OrderedDict
from collections.abc import Callable, Hashable

from torch import Tensor

from data.samples import Samples

LARGEST = 2**28
"""Bytes that are kept together."""
EACH = 2**12
"""Bytes that samples take beside their values."""


class SampleCache:
    """Samples by key: those asked for last, at least one, as many as have LARGEST bytes together."""

    def __init__(self) -> None:
        self.samples: OrderedDict[Hashable, Samples] = OrderedDict()
        self.bytes = 0

    def get(self, key: Hashable, make: Callable[[], Samples]) -> Samples:
        """Return the samples of a key, made if they are not kept."""
        if key not in self.samples:
            self.samples[key] = samples = make()
            self.bytes += size(samples)
            while self.bytes > LARGEST and len(self.samples) > 1:
                self.bytes -= size(self.samples.popitem(last=False)[1])
        self.samples.move_to_end(key)
        return self.samples[key]


def size(samples: Samples) -> int:
    """Return the bytes of the samples; files, which stay on the disk, have none."""
    inputs = samples.inputs_N.nbytes if isinstance(samples.inputs_N, Tensor) else 0
    return EACH + inputs + samples.labels_N.nbytes
