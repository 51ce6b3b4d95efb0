"""Any DataLoader, Dataset or pair of tensors as FedSkew's Samples, each sample as the user's own code makes it."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
)

from data import Samples

LABEL_NAMES = ("label", "labels", "y", "target", "fine_label")
"""Under which names a batch that is a dict may have its labels."""
READING_BATCH = 64
"""Samples in a batch of a data set that comes without a loader."""
BATCH_SIZE = 32
"""Samples in a training batch where neither a loader nor the call states it."""
MOST_DRAWS = 100
"""How often a sampler may draw each sample of the data set on average: one that draws more never ends."""
INSTEAD = (
    'use variants=["iwds"] or variants=["reweighting"] for rare classes, '
    "or pass a Subset of the client's samples"
)
"""In the sentences about samplers: what to do in their place."""


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
        return each(lambda values: values[indices], self.inputs_N)

    def only(self, indices: Tensor) -> "PreparedSamples":
        """Return some of the samples."""
        return replace(self, inputs_N=self.batch(indices), labels_N=self.labels_N[indices])


def each(function: Callable[[Tensor], Tensor], values: Any) -> Any:
    """Return what a function makes of inputs, by name where they have names."""
    if isinstance(values, Mapping):
        return NamedInputs({name: function(own) for name, own in values.items()})
    return function(values)


def samples_of(data: Any, device: str | torch.device = "cpu", label: str = "") -> Samples:
    """Return (inputs, labels), a DataLoader or a Dataset as Samples on `device`.

    The samples that a loader's sampler draws in an epoch are read once, by the loader's own collate_fn and workers, in
    the order of the data set: training draws its own batches. A random transform is drawn anew in every round, and is
    then the same in all epochs of the round.

    Args:
        data: a pair of tensors or arrays, (N, ...) and (N,); a DataLoader; a Dataset; or Samples.
        device: where the samples go.
        label: the name of the labels in batches that are dicts; found among LABEL_NAMES when empty.

    Raises:
        ValueError: the data are empty or endless, the loader's epochs are of other samples each, inputs are not
            finite, or the labels cannot be found or are no class numbers.
    """
    if isinstance(data, Samples):
        return data
    if isinstance(data, tuple | list) and len(data) == 2:
        inputs, labels = pair_of(data)
    else:
        inputs, labels = read(data, label)
    is_number = not (labels.is_floating_point() or labels.is_complex())
    if labels.dim() != 1 or not is_number or not len(labels) or labels.long().min() < 0:
        remedy = "" if is_number else "; whole numbers become class numbers with .long()"
        raise ValueError(
            f"labels are {labels.dtype} of shape {tuple(labels.shape)} and must be one class number "
            f"of 0 or more per sample, of at least one sample{remedy}"
        )
    check_inputs(inputs, len(labels))
    return PreparedSamples(
        each(lambda values: values.to(device).contiguous(), inputs),
        labels.to(device).long(),
        mean=torch.zeros(1, device=device),
        std=torch.ones(1, device=device),
    )


def check_inputs(inputs: Tensor | Mapping[str, Tensor], samples: int) -> None:
    """Raise ValueError unless there is one input for each label, and all of them are finite."""
    by_name = inputs if isinstance(inputs, Mapping) else {"": inputs}
    for name, values in by_name.items():
        words = f"inputs {name}".strip()
        count = len(values) if values.dim() else 0
        if count != samples:
            raise ValueError(f"there are {count} {words} and {samples} labels: one label per input")
        broken = torch.isfinite(values).logical_not().nonzero()
        if len(broken):
            raise ValueError(
                f"the {words} of sample {int(broken[0][0])} are not finite (NaN or infinite), of {count} samples: "
                "fill in what is missing, or leave such samples out"
            )


def check_input_names(inputs: object, net: nn.Module) -> None:
    """Raise ValueError for inputs by name that are not the arguments of the model's forward pass."""
    if not isinstance(inputs, Mapping):
        return
    try:
        inspect.signature(net.forward).bind(**inputs)
    except TypeError as error:
        raise ValueError(
            f"a batch has the tensors {', '.join(inputs)} beside its labels, which {type(net).__name__} does not take "
            f"({error}): name them as forward does, or leave all but one out of the data set"
        ) from None


def read(data: Any, label: str) -> tuple[Any, Tensor]:
    """Return the inputs and labels of a loader's or data set's samples, in the order of the data set."""
    loader = data if isinstance(data, DataLoader) else DataLoader(data, READING_BATCH)
    dataset = loader.dataset
    has_numbers = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if isinstance(dataset, IterableDataset) or not has_numbers:
        raise ValueError(
            f"{type(dataset).__name__} can only be read from start to end: pass tensors, or a "
            "Dataset with __getitem__ and __len__"
        )
    # What the workers do to a sample, such as seeding its transform, is the loader's as well.
    in_order = DataLoader(
        dataset,
        batches_of(loader).batch_size,
        sampler=sample_numbers(loader),
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        timeout=loader.timeout,
    )
    try:
        pairs = [pair_of(split_batch(batch, label)) for batch in in_order]
        if not pairs:
            raise ValueError("the data set is empty: a client needs at least one sample")
        inputs, labels = zip(*pairs, strict=True)
        return joined(inputs), joined(labels)
    except (TypeError, RuntimeError, KeyError) as error:
        raise ValueError(
            "samples cannot be read and joined to a batch: give the data set a transform to tensors of one size; "
            f"the DataLoader says: {last_line(error)}"
        ) from error


def last_line(error: Exception) -> str:
    """Return the last line of an error's text: an error of a worker begins with a traceback."""
    *_, last = str(error).strip().splitlines() or [""]
    return last


def batches_of(loader: DataLoader[Any]) -> BatchSampler:
    """Return what makes a loader's batches. Raises ValueError where that is more than a size and a sampler."""
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise ValueError(
            f"{type(loader).__name__} has an __iter__ of its own, which training would not use: pass a "
            "torch.utils.data.DataLoader or the data set"
        )
    batches: Any = loader.batch_sampler
    if type(batches) is not BatchSampler:
        raise ValueError(
            f"the DataLoader has batch_size=None, or its batch_sampler {type(batches).__name__} has a rule "
            f"of its own, and training draws its own batches: {INSTEAD}"
        )
    return batches


def sample_numbers(loader: DataLoader[Any]) -> list[int]:
    """Return the numbers of the samples that a loader reads in an epoch, sorted.

    Raises ValueError where an epoch is a random choice of samples, so that two epochs have other ones.
    """
    sampler: Any = batches_of(loader).sampler
    size = len(loader.dataset)  # type: ignore[arg-type]
    most = MOST_DRAWS * size
    numbers, again = (sorted(islice(sampler, most + 1)) for _ in range(2))
    rule = ""
    if len(numbers) > most:
        rule = f"never ends: {INSTEAD}"
    elif numbers != again:
        rule = f"draws other samples each time: {INSTEAD}"
    elif numbers and not 0 <= numbers[0] <= numbers[-1] < size:
        rule = f"draws samples {numbers[0]} to {numbers[-1]}, and the data set has {size}"
    if rule:
        raise ValueError(f"the DataLoader's sampler {type(sampler).__name__} {rule}")
    return numbers


def batch_size_of(data: Any) -> int:
    """Return the size of training batches that the data come with."""
    return int(batches_of(data).batch_size) if isinstance(data, DataLoader) else BATCH_SIZE


def drops_last(data: Any) -> bool:
    """Return whether the data come with the wish to leave out an epoch's last, smaller batch."""
    return isinstance(data, DataLoader) and batches_of(data).drop_last


def split_batch(batch: Any, label: str) -> Any:
    """Return a batch's inputs and labels; of a dict's other tensors the only one, or all of them by name."""
    if not isinstance(batch, Mapping):
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            values = len(batch) if isinstance(batch, tuple | list) else 1
            raise ValueError(
                f"a sample of the data set has {values} values and must be (input, label): return these two alone"
            )
        return batch
    found = [name for name in ([label] if label else LABEL_NAMES) if name in batch]
    if not found:
        raise ValueError(
            f"a batch has {sorted(batch)}, and its labels are not found: name them with label="
        )
    labels = batch[found[0]]
    tensors = {
        name: values
        for name, values in batch.items()
        if name != found[0] and isinstance(values, Tensor)
    }
    if not tensors:
        raise ValueError(
            f"of a batch's {sorted(batch)} none but the labels is a tensor: give the data set a transform"
        )
    return (tensors if len(tensors) > 1 else next(iter(tensors.values()))), labels


def pair_of(pair: Any) -> tuple[Any, Tensor]:
    """Return inputs and labels as tensors. Raises ValueError for texts, objects and lists of several lengths."""
    inputs, labels = pair
    rule = "inputs must be one tensor, or tensors by name: give the data set a transform to tensors of one size"
    try:
        inputs = each(torch.as_tensor, inputs)
        rule = "labels must be class numbers: number the classes from 0 in the data set"
        return inputs, torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{rule} ({last_line(error)})") from None


def joined(parts: Sequence[Any]) -> Any:
    """Return what all batches have as one tensor, or as one per name."""
    if isinstance(parts[0], Mapping):
        return NamedInputs({name: joined([part[name] for part in parts]) for name in parts[0]})
    return torch.cat(list(parts))
