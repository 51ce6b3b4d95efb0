"""A round's record, a line of rounds.jsonl: its fields and their place in JSON.

A record tells of up to MOST clients one by one. Of more it has counts, the ends and quantiles of what is spread over
them, and the clients that move the model furthest: a round of 100,000 clients is a line of some kilobytes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from strategies.core.update_statistics import (
    MOST,
    MethodNumbers,
    Round,
    Seconds,
    UpdateStatistics,
    median_norm,
    noteworthy,
)

Part = TypeVar("Part")
BY_CLASS = "-by-class"
"""How the name of a number by class ends; `X-few` of `X-by-class` is its mean over a shot group."""


@dataclass(frozen=True)
class Spread:
    """A share over the clients. The NaN of a client without test samples is among the values and counts nowhere."""

    mean: float = math.nan
    worst: float = math.nan
    worst_decile: float = math.nan
    """Of the lowest tenth the mean, at least of one."""
    values: Sequence[float] = ()
    """By client; of more than MOST clients as many quantiles in ascending order, the first the lowest value."""

    def shortened(self) -> "Spread":
        """Return the same with quantiles, where there are too many values."""
        if len(self.values) <= MOST:
            return self
        ascending = sorted(value for value in self.values if not math.isnan(value)) or [math.nan]
        places = np.arange(MOST) * (len(ascending) - 1) // (MOST - 1)
        quantiles = [ascending[place] for place in places]
        return replace(self, values=quantiles)


@dataclass(frozen=True)
class ModelNumbers:
    """A model's metrics on one set of samples; NaN where the samples do not define one."""

    means: Mapping[str, float] = field(default_factory=dict)
    """accuracy, balanced-accuracy, macro-f1, loss, calibration-error, brier; of at most 100 classes auroc, auroc-error,
    auprc, sensitivity-at-specificity-90, specificity-at-sensitivity-90; GROUP-recall by shot group.

    The numbers of rankings are macro means over the classes; of two classes the last three are the positive class's.
    """
    recall: Sequence[float] = ()
    """By class."""
    spreads: Mapping[str, Spread] = field(default_factory=dict)
    """local-accuracy; where clients measure, client-NAME of accuracy, balanced-accuracy, auroc and others too."""
    validation: "ModelNumbers | None" = None
    """The same on the validation set, where the data have one."""
    by_class: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Of at most 20 classes the numbers of their rankings, NAME-by-class."""
    confusion: Sequence[Sequence[int]] | None = None
    """Of at most 20 classes: row the label, column the prediction."""
    positive_class: str | None = None
    """Of two classes the one that auprc, sensitivity and specificity are about."""

    def __getitem__(self, name: str) -> float:
        """Return one of the means; NaN where it was not measured."""
        return self.means.get(name, math.nan)

    def shortened(self) -> "ModelNumbers":
        """Return the same with shortened spreads."""
        spreads = {name: spread.shortened() for name, spread in self.spreads.items()}
        validation = self.validation and self.validation.shortened()
        return replace(self, spreads=spreads, validation=validation)

    @staticmethod
    def of(content: Mapping[str, Any]) -> "ModelNumbers":
        """Undo `to_json`."""
        known, numbers = divided(ModelNumbers, content)
        if "validation" in known:
            known["validation"] = ModelNumbers.of(known["validation"])
        # In JSON means, spreads and numbers by class stand side by side: their types and names tell them apart.
        means, spreads, by_class = {}, {}, {}
        for name, part in numbers.items():
            if isinstance(part, Mapping):
                spreads[name] = made(Spread, part)
            elif name.endswith(BY_CLASS):
                by_class[name] = part
            else:
                means[name] = part
        return ModelNumbers(means=means, spreads=spreads, by_class=by_class, **known)


@dataclass(frozen=True)
class RoundRecord(Round):
    """The record of a round. Of more than MOST clients, failures and workers it has the first."""

    models: Mapping[str, ModelNumbers] = field(default_factory=dict)
    """On the test set, by deployed model; empty where the round was not evaluated."""
    evaluated_by: str = "nobody"
    """server, clients or nobody."""
    used: int = 0
    """Number of clients whose updates were used."""
    failed: int = 0
    """Number of failures."""
    updates: Sequence[UpdateStatistics] = ()
    """How the clients moved the model; of more than MOST those of the largest norms."""
    median_norm: float = math.nan
    """The median norm of all updates."""
    line: str = ""
    """The run's messages about the round."""

    def shortened(self) -> "RoundRecord":
        """Return the record of a round that tells of every client as one that tells of at most MOST."""
        return replace(
            self,
            models={name: numbers.shortened() for name, numbers in self.models.items()},
            clients=self.clients[:MOST],
            used=len(self.clients),
            failures=dict(islice(self.failures.items(), MOST)),
            failed=len(self.failures),
            workers=self.workers[:MOST],
            updates=noteworthy(self.updates),
            median_norm=median_norm(self.updates),
            method_numbers=self.method_numbers
            and {
                name: replace(one, values=one.values[:MOST])
                for name, one in self.method_numbers.items()
            },
        )

    def to_json(self) -> dict[str, Any]:
        """Return the record as a line of rounds.jsonl holds it."""
        content: dict[str, Any] = to_json(self)
        return content

    @staticmethod
    def of(content: Mapping[str, Any]) -> "RoundRecord":
        """Undo `to_json`; a kept record lacks the updates and the clients."""
        known, metrics = divided(RoundRecord, content)
        models = known.pop("models")
        failures = known.pop("failures")
        updates = known.pop("updates", ())
        numbers = known.pop("method_numbers", None)
        if numbers is not None:
            numbers = {name: made(MethodNumbers, part) for name, part in numbers.items()}
        return RoundRecord(
            models={name: ModelNumbers.of(part) for name, part in models.items()},
            failures={int(client): why for client, why in failures.items()},
            updates=[made(UpdateStatistics, part) for part in updates],
            method_numbers=numbers,
            seconds=made(Seconds, known.pop("seconds")),
            metrics=metrics,
            **known,
        )


FLAT = {ModelNumbers: ("means", "spreads", "by_class"), RoundRecord: ("metrics",)}
"""The fields whose entries stand in JSON beside the other fields."""


def to_json(value: Any) -> Any:
    """Return a value as JSON has it: dashes in names, null for NaN and infinity, nothing for a field that is None."""
    if is_dataclass(value):
        flat = FLAT.get(type(value), ())
        named: dict[str, Any] = {}
        beside: dict[str, Any] = {}
        for name in (field.name for field in fields(value)):
            part = getattr(value, name)
            if name in flat:
                beside |= to_json(part)
            elif part is not None:
                named[name.replace("_", "-")] = to_json(part)
        return {**named, **beside}
    if isinstance(value, Mapping):
        return {str(key): to_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def divided(kind: type, content: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what JSON holds of a class's fields, and what stands in JSON beside them; null stands for NaN."""
    names = {field.name.replace("_", "-"): field.name for field in fields(kind)}
    known: dict[str, Any] = {}
    beside: dict[str, Any] = {}
    for key, value in content.items():
        if key in names:
            known[names[key]] = without_null(value)
        else:
            beside[key] = without_null(value)
    return known, beside


def made(kind: type[Part], content: Mapping[str, Any]) -> Part:
    """Return an object of a class, made of its fields in JSON."""
    known, _ = divided(kind, content)
    return kind(**known)


def without_null(value: Any) -> Any:
    """Return a number, or a list of them, of JSON, where null stands for NaN."""
    if isinstance(value, list):
        return [without_null(part) for part in value]
    return math.nan if value is None else value
