"""The part of a run's settings that its clients need."""

import json
from collections.abc import Container
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from client_app.client import Variant
from client_app.models import PLAIN, ModelSettings, is_own_model
from client_app.optimizer import TrainingSettings
from client_app.process import code_version
from client_app.user_code import import_path_of, load
from client_app.variants import VARIANTS
from data import DataSettings


@dataclass(frozen=True)
class RunSpec:
    """The part of a run's settings that its clients need; it travels with every message as JSON."""

    data: DataSettings
    training: TrainingSettings
    model: str
    variants: tuple[Variant, ...]
    seed: int
    device: str
    """auto, cpu or cuda."""
    folder: Path
    """The run's folder; the clients' memory is below it."""
    code: str
    """`code_version()` of the server: a client that runs other code refuses."""
    model_settings: ModelSettings = PLAIN
    rounds: int = 0
    """Rounds that the run is to have; 0 where the server does not say."""

    def to_json(self) -> str:
        """Return the spec as JSON."""
        fields = asdict(self)
        fields["folder"] = str(self.folder)
        fields["variants"] = {
            name_in_messages(variant): asdict(variant) for variant in self.variants
        }
        return json.dumps(fields, sort_keys=True)

    @staticmethod
    def from_json(text: str, modules: Container[str] | None = None) -> "RunSpec":
        """Undo `to_json`. Of the modules that the text names only `modules` are used; None stands for any.

        Raises RuntimeError if the server runs other code than this process, KeyError for a variant of another module,
        or of a name that does not exist.
        """
        fields: dict[str, Any] = json.loads(text)
        # Before all else: other code may have other settings, and other names for them.
        if fields["code"] != code_version():
            raise RuntimeError(
                "this client runs other code than the server: another checkout is on its path "
                "(restart Flower's SuperLink, or use `fedskew run`)"
            )
        variants = []
        for name, stated in fields["variants"].items():
            variants.append(variant_class(name, modules)(**stated))
        fields |= {
            "data": DataSettings(**fields["data"]),
            "training": TrainingSettings(**fields["training"]),
            "model_settings": ModelSettings(**fields["model_settings"]),
            "variants": tuple(variants),
            "folder": Path(fields["folder"]),
        }
        return RunSpec(**fields)


def name_in_messages(variant: Variant) -> str:
    """Return a variant's name, or MODULE:CLASS of one of the user's own."""
    return import_path_of(type(variant)) or variant.name


def user_code_of(text: str) -> tuple[str, list[str]]:
    """Return what a RunSpec's JSON names of the user's own modules: its model or "", and its variants.

    Nothing is imported.
    """
    fields: dict[str, Any] = json.loads(text)
    model = fields["model"]
    return model if is_own_model(model) else "", [
        name for name in fields["variants"] if ":" in name
    ]


def is_variant(value: object) -> bool:
    """Return whether something is a class of variants."""
    return isinstance(value, type) and issubclass(value, Variant)


def variant_class(name: str, modules: Container[str] | None) -> type[Variant]:
    """Return a variant's class by its name, or by MODULE:CLASS of one of the modules."""
    module, colon, _ = name.partition(":")
    if colon and (modules is None or module in modules):
        loaded: type[Variant] = load("method", name, "class of variants", is_variant)
        return loaded
    return VARIANTS[name]
