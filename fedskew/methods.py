"""The names for a method of your own, equal in a clone and in an installed wheel.

`Variant` is a method's client side and `ServerMethod` its server side; `Method` names both. The other
names are what their hooks get and return, and the rules of their settings. See docs/guides/plugin.md.

The module is callable: `fedskew.methods()` returns the methods that there are, by name.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedskew.api import methods

if TYPE_CHECKING:
    from client_app.client import (
        Client,
        Contribution,
        InvalidReply,
        Loss,
        Report,
        TensorSpec,
        Trained,
        Upload,
        Variant,
        integers,
        vectorizable,
    )
    from client_app.models import Classifier
    from client_app.optimizer import TrainingSettings
    from client_app.state import State, weighted_mean, weighted_sum
    from client_app.training import train_round
    from client_app.variants.class_prior import PriorCorrection, Reweighting
    from client_app.variants.feature_statistics import GridStatistics
    from client_app.variants.focal import Focal
    from client_app.variants.logit_calibration import LogitCalibration
    from client_app.variants.logit_shift import LogitShift
    from client_app.variants.proximal import Proximal
    from client_app.variants.resampling import Resampling
    from data import OneOf, Rule, Samples, SettingError, Settings
    from server_app.methods import Method
    from strategies.closed_form import ClosedFormHead, Statistics, regularized, solver_of
    from strategies.core.server import Deployment, Server, ServerMethod, Unit, Update
    from strategies.creff import CReFF
    from strategies.fed_lda import lda_head

MODULES = (
    "client_app.client",
    "client_app.models",
    "client_app.optimizer",
    "client_app.state",
    "client_app.training",
    "client_app.variants.class_prior",
    "client_app.variants.feature_statistics",
    "client_app.variants.focal",
    "client_app.variants.logit_calibration",
    "client_app.variants.logit_shift",
    "client_app.variants.proximal",
    "client_app.variants.resampling",
    "data",
    "server_app.methods",
    "strategies.closed_form",
    "strategies.core.server",
    "strategies.creff",
    "strategies.fed_lda",
)
"""Where the names are."""
__all__ = [
    "CReFF",
    "Classifier",
    "Client",
    "ClosedFormHead",
    "Contribution",
    "Deployment",
    "Focal",
    "GridStatistics",
    "InvalidReply",
    "LogitCalibration",
    "LogitShift",
    "Loss",
    "Method",
    "OneOf",
    "PriorCorrection",
    "Proximal",
    "Report",
    "Resampling",
    "Reweighting",
    "Rule",
    "Samples",
    "Server",
    "ServerMethod",
    "SettingError",
    "Settings",
    "State",
    "Statistics",
    "TensorSpec",
    "Trained",
    "TrainingSettings",
    "Unit",
    "Update",
    "Upload",
    "Variant",
    "integers",
    "lda_head",
    "regularized",
    "solver_of",
    "train_round",
    "vectorizable",
    "weighted_mean",
    "weighted_sum",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: torch takes a second."""
    from data.packages import module_name  # loads numpy, which `import fedskew` does not

    for module in MODULES if name in __all__ else ():
        found = getattr(import_module(module_name(module)), name, None)
        if found is not None:
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class CallableModule(ModuleType):
    """A module that can be called."""

    def __call__(self) -> "dict[str, Method]":
        """Return the methods by their names, each with its paper, parts and uploads; `a+b` composes them."""
        return methods()


sys.modules[__name__].__class__ = CallableModule
