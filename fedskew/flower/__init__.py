"""FedSkew's methods inside any Flower app: strategies for its server, functions and mods for its clients.

On the client, `local_round` answers flwr's train message with a round of local training. `load_model` loads a model for
the app's own evaluation, `local_loss` replaces the loss of the app's own training loop, and `fedbn_mod` and
`silobn_mod` keep batch norm on the client.
On the server, every strategy is a subclass of flwr's FedAvg and takes its arguments; `class_counts` asks the clients
for what FedShift needs, and `flat_arrays` sends a model as one array. See docs/guides/flower.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedskew.flower.client import load_model, local_loss, local_round
    from fedskew.flower.heads import (
        CCVR,
        Fed3R,
        FedLDA,
        FedLDAPooled,
        FedNCM,
    )
    from fedskew.flower.method_strategy import MethodStrategy
    from fedskew.flower.mods import fedbn_mod, silobn_mod
    from fedskew.flower.questions import class_counts
    from fedskew.flower.records import flat_arrays
    from fedskew.flower.strategies import (
        CReFF,
        CReFFCode,
        ExactFedAvg,
        FedBE,
        FedDF,
        FedNova,
        Median,
        NormClipping,
        RatioLoss,
        Scaffold,
        TauNorm,
        TrimmedMean,
    )

MODULES = {
    "client": ("load_model", "local_loss", "local_round"),
    "heads": ("CCVR", "Fed3R", "FedLDA", "FedLDAPooled", "FedNCM"),
    "method_strategy": ("MethodStrategy",),
    "mods": ("fedbn_mod", "silobn_mod"),
    "questions": ("class_counts",),
    "records": ("flat_arrays",),
    "strategies": (
        "CReFF",
        "CReFFCode",
        "ExactFedAvg",
        "FedBE",
        "FedDF",
        "FedNova",
        "Median",
        "NormClipping",
        "RatioLoss",
        "Scaffold",
        "TauNorm",
        "TrimmedMean",
    ),
}
"""The public names by the module that defines them."""
__all__ = [
    "CCVR",
    "CReFF",
    "CReFFCode",
    "ExactFedAvg",
    "Fed3R",
    "FedBE",
    "FedDF",
    "FedLDA",
    "FedLDAPooled",
    "FedNCM",
    "FedNova",
    "Median",
    "MethodStrategy",
    "NormClipping",
    "RatioLoss",
    "Scaffold",
    "TauNorm",
    "TrimmedMean",
    "class_counts",
    "fedbn_mod",
    "flat_arrays",
    "load_model",
    "local_loss",
    "local_round",
    "silobn_mod",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing this package takes no time."""
    for module, names in MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
