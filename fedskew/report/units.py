"""The units of a record's numbers: shares are in percent, the others say what they are."""

from server_app.record import BY_CLASS
from strategies.core.server import Unit
from strategies.registry import SERVER_METHODS

UNITS = {
    "loss": Unit.NATS,
    "brier": Unit.NONE,
    "client-brier": Unit.NONE,
    "bytes-down": Unit.NONE,
    "bytes-up": Unit.NONE,
}
"""Of the numbers that are no shares; a server method brings those of its own."""
for method in SERVER_METHODS.values():
    UNITS |= method.units


def unit_of(metric: str) -> Unit:
    """Return the unit of a number, of a part of one over the clients (`X.worst`), or of a mean over a shot group."""
    name = metric.partition(".")[0]
    of_group = UNITS.get(name.rpartition("-")[0] + BY_CLASS, Unit.PERCENT)
    return UNITS.get(name, of_group)


def chance_of(metric: str, classes: int) -> float | None:
    """Return what a number comes to by chance, in percent; None where that depends on more than the classes."""
    return {"balanced-accuracy": 100 / classes, "auroc": 50.0}.get(metric)


def in_percent(metric: str) -> bool:
    """Return whether a number is shown in percent."""
    return unit_of(metric) == Unit.PERCENT
