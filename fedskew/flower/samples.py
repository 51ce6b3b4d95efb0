"""Any DataLoader, Dataset or pair of tensors as FedSkew's Samples, each sample as the user's own code makes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils.data import DataLoader, IterableDataset

from data import Samples

LABEL_NAMES = ("label", "labels", "y", "target", "fine_label")
"""Under which names a batch that is a dict may have its labels."""
READING_BATCH = 64
"""Samples in a batch of a data set that comes without a loader."""


class NamedInputs(dict[str, Tensor]):
    """A batch of inputs by name, as a text model takes them."""

    @property
    def device(self) -> torch.device:
        """The device of the inputs."""
        return next(iter(self.values())).device


@dataclass(frozen=True, eq=False)
class PreparedSamples(Samples):
    """Samples that the user's own code has scaled and normalized: they are taken as they are, in any dtype."""

    def batch(self, indices: Tensor, draws: Generator | None = None) -> Any:
        """Return the inputs at `indices`, unchanged. Nothing is augmented: the user's transforms have done it."""
        return select(self.inputs_N, indices)

    def only(self, indices: Tensor) -> "PreparedSamples":
        """Return some of the samples."""
        chosen: Any = select(self.inputs_N, indices)
        return replace(self, inputs_N=chosen, labels_N=self.labels_N[indices])


def select(inputs_N: Any, indices: Tensor) -> Any:
    """Return the inputs at `indices`, of every name where inputs have names."""
    if isinstance(inputs_N, Mapping):
        return NamedInputs({name: values[indices] for name, values in inputs_N.items()})
    return inputs_N[indices]


def samples_of(data: Any, device: str | torch.device = "cpu", label: str = "") -> Samples:
    """Return (inputs, labels), a DataLoader or a Dataset as Samples on `device`.

    A loader's data set is read once, in its own order and by the loader's own collate_fn. A random transform is drawn
    anew in every round, and is then the same in all epochs of the round.

    Args:
        data: a pair of tensors or arrays, (N, ...) and (N,); a DataLoader; a Dataset; or Samples.
        device: where the samples go.
        label: the name of the labels in batches that are dicts; found among LABEL_NAMES when empty.

    Raises:
        ValueError: the data are empty or endless, or the labels cannot be found or are no class numbers.
    """
    if isinstance(data, Samples):
        return data
    if isinstance(data, tuple | list) and len(data) == 2:
        inputs: Any = torch.as_tensor(data[0])
        labels = torch.as_tensor(data[1])
    else:
        inputs, labels = read(data, label)
    is_vector_of_integers = labels.dim() == 1 and not labels.is_floating_point()
    if not is_vector_of_integers or not len(labels) or labels.min() < 0:
        raise ValueError(
            f"labels are {labels.dtype} of shape {tuple(labels.shape)} and must be one class number "
            "of 0 or more per sample, of at least one sample"
        )
    if isinstance(inputs, Mapping):
        inputs = {name: values.to(device) for name, values in inputs.items()}
    else:
        inputs = inputs.to(device).contiguous()
    return PreparedSamples(
        inputs,
        labels.to(device).long(),
        mean=torch.zeros(1, device=device),
        std=torch.ones(1, device=device),
    )


def read(data: Any, label: str) -> tuple[Any, Tensor]:
    """Return the inputs and labels of all of a loader's or data set's samples, in order."""
    loader = data if isinstance(data, DataLoader) else DataLoader(data, READING_BATCH)
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise ValueError(
            f"{type(dataset).__name__} can only be read from start to end: pass tensors, or a "
            "Dataset with __getitem__ and __len__"
        )
    size = loader.batch_size or READING_BATCH
    in_order = DataLoader(dataset, size, collate_fn=loader.collate_fn)
    all_inputs, all_labels = [], []
    for batch in in_order:
        inputs, labels = split_batch(batch, label)
        all_inputs.append(inputs)
        all_labels.append(labels)
    if not all_labels:
        raise ValueError("the data set is empty: a client needs at least one sample")
    return joined(all_inputs), torch.cat(all_labels)


def split_batch(batch: Any, label: str) -> tuple[Any, Tensor]:
    """Return a batch's inputs and labels; of a dict's other tensors the only one, or all of them by name."""
    if not isinstance(batch, Mapping):
        inputs, labels = batch
        return inputs, labels
    label_names = [label] if label else LABEL_NAMES
    found = [name for name in label_names if name in batch]
    if not found:
        raise ValueError(
            f"a batch has {sorted(batch)}, and its labels are not found: name them with label="
        )
    name = found[0]
    tensors = {}
    for key, values in batch.items():
        if key != name and isinstance(values, Tensor):
            tensors[key] = values
    if not tensors:
        raise ValueError(
            f"of a batch's {sorted(batch)} none but the labels is a tensor: give the data set a transform"
        )
    if len(tensors) == 1:
        return next(iter(tensors.values())), batch[name]
    return tensors, batch[name]


def joined(parts: Sequence[Any]) -> Any:
    """Return the inputs of all batches as one tensor, or as one per name."""
    if isinstance(parts[0], Mapping):
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return torch.cat(list(parts))
