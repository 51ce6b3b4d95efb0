"""The settings of a run, and its run id: a name with a hash of every setting that can change the run's numbers."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le, Lt

from client_app.client import Variant
from client_app.models import (
    MODELS,
    Classifier,
    ModelSettings,
    build,
    has_batch_norm,
    has_fixed_features,
    is_own_model,
    kept_width,
)
from client_app.models.backbone import is_backbone, sha256_of
from client_app.models.settings import of_hash
from client_app.optimizer import TrainingSettings
from client_app.process import code_version
from client_app.run_spec import RunSpec
from client_app.state import size
from client_app.training import private_names
from client_app.user_code import load, source_hash
from client_app.vectorized import fitting_clients
from data import DataSettings, OneOf, Rule, SettingError, Settings, When
from data.agreement import Agreement
from data.errors import Remedy
from data.readers.catalog import is_own, is_sites, members
from data.resolve import agreement_of, in_messages
from server_app.composition import ComposedMethod
from server_app.methods import METHODS
from server_app.plugins import register, sources_of
from strategies.core.node_assignment import ExchangeSettings
from strategies.core.server import ServerMethod
from strategies.core.server_optimizer import FORMS, RULES, ServerOptimizer

Scalar = bool | int | float | str
MODEL = Rule(
    lambda name: name in ("auto", *MODELS) or is_backbone(name) or is_own_model(name),
    f"must be MODULE:FUNCTION, torchvision:NAME, timm:NAME or one of {', '.join(('auto', *MODELS))}",
)
TENSORBOARD, MLFLOW, WANDB = (
    Rule(
        lambda asked, package=package: not asked or find_spec(package) is not None,  # type: ignore[misc]
        f"needs the package {package}",
        f"pip install 'fedskew[{package}]'",
    )
    for package in ("tensorboard", "mlflow", "wandb")
)
"""The rules of the settings tensorboard, mlflow and wandb: true needs the installed package."""


@dataclass(frozen=True)
class GeneralSettings(Settings):
    """The method, the model, the length of the run, and the folder of its results."""

    method: str = "fedshift"
    """One method, or several joined by +, as in fedshift+fedbn+iwds; your own as MODULE:CLASS."""
    method_settings: str = ""
    """Settings of your own method as JSON, {"my-part.power": 0.5}; for `flwr run`, which takes only declared keys."""
    model: Annotated[str, MODEL] = "auto"
    """The model; auto is the papers' choice for a named data set, for your own images resnet-8, beyond 64x64 pixels
    resnet-18-imagenet, for vectors mlp-bn."""
    rounds: Annotated[int, Ge(0), Le(1_000_000)] = 20
    """Communication rounds; 0 trains nothing and only computes heads in closed form."""
    participation: Annotated[float, Gt(0), Le(1)] = 1.0
    """Share C of the clients that take part in a round: floor(C N), at least one."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random: data draws, partition, first weights, sampling, batches."""
    evaluate_every: Annotated[int, Ge(0)] = 1
    """Evaluate every this many rounds, and always the last one; 0 evaluates the last round only."""
    server_optimizer: Annotated[str, OneOf("momentum", *RULES)] = "momentum"
    """The server optimizer: momentum, or adagrad, adam or yogi, which adapt the step of each coordinate."""
    server_learning_rate: Annotated[float, Gt(0)] = 1.0
    """Learning rate of the server optimizer."""
    server_momentum: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Momentum of the server optimizer; beta1 of adagrad, adam and yogi."""
    server_momentum_form: Annotated[
        str, OneOf(*FORMS), When("server_optimizer", ("momentum",)), When("server_momentum")
    ] = "heavy-ball"
    """Form of the server's momentum: heavy-ball, nesterov or damped."""
    server_adaptivity: Annotated[float, Gt(0), When("server_optimizer", RULES)] = 1e-3
    """tau of adagrad, adam and yogi, in the denominator: a smaller one makes the steps of coordinates more equal."""
    positive_class: str = ""
    """With two classes: the positive class of AUPRC, sensitivity and specificity; empty is the rarer class."""
    device: Annotated[str, OneOf("auto", "cpu", "cuda")] = "auto"
    """Device for training and evaluation: auto (a GPU if the process sees one), cpu or cuda; GPUs are experimental."""
    results: Annotated[str, Rule(lambda path: bool(path.strip()), "must name a folder")] = "results"
    """Folder in which every run gets its own folder; for `flwr run` an absolute path, or ~/fedskew-results."""
    overwrite: bool = False
    """Start again from round 1 even if the run is finished or can be resumed."""
    tensorboard: Annotated[bool, TENSORBOARD] = False
    """Also log every round's numbers to TensorBoard, in the subfolder tensorboard of the run's folder."""
    mlflow: Annotated[bool, MLFLOW] = False
    """Also log them to MLflow: to MLFLOW_TRACKING_URI, or to the file store mlruns in the results folder."""
    wandb: Annotated[bool, WANDB] = False
    """Also log them to Weights & Biases, offline, in the subfolder wandb; variables such as WANDB_MODE override it."""

    def is_evaluated(self, round: int) -> bool:
        """Return whether a round is evaluated: every `evaluate_every`-th round, and the last."""
        return round == self.rounds or (
            self.evaluate_every > 0 and round % self.evaluate_every == 0
        )

    @property
    def optimizer(self) -> ServerOptimizer:
        """Return the server optimizer that these settings choose."""
        has_momentum = self.server_optimizer == "momentum"
        return ServerOptimizer(
            learning_rate=self.server_learning_rate,
            momentum=self.server_momentum,
            rule=self.server_momentum_form if has_momentum else self.server_optimizer,
            adaptivity=self.server_adaptivity,
        )


WITHOUT_EFFECT_ON_NUMBERS = {
    "device", "results", "overwrite", "data-root", "download", "cache", "nodes", "node-wait", "timeout",
    "min-reply-share", "tensorboard", "mlflow", "wandb",
}  # fmt: skip
"""Keys that the hash in a run's id leaves out."""


@dataclass(frozen=True)
class RunSettings:
    """The settings of one run, with every `auto` resolved and the method's parts created.

    `settings.parse` makes them.
    """

    general: GeneralSettings
    model: ModelSettings
    data: DataSettings
    training: TrainingSettings
    exchange: ExchangeSettings
    parts: ComposedMethod
    variants: tuple[Variant, ...]
    combine: ServerMethod
    deploys: tuple[ServerMethod, ...]
    known_run_id: str = dataclasses.field(default="", compare=False)
    """The run id if it is fixed, else "": it then stays, even if a user's model file changes while the run trains."""

    def __getstate__(self) -> dict[str, object]:
        """Return what pickle takes elsewhere: the run id, too."""
        return {**vars(self), "run_id": self.run_id}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Take these settings from elsewhere, and register the user's own methods in this process."""
        vars(self).update(state)
        register(self.general.method, self.general.model, self.data.dataset)

    @property
    def serving(self) -> tuple[ServerMethod, ...]:
        """The server methods."""
        return (self.combine, *self.deploys)

    @property
    def groups(self) -> Sequence[Settings]:
        """The settings that this run uses, those of the method's parts last."""
        run = (self.general, self.model, self.data, self.training, self.exchange)
        return (*run, *self.variants, *self.serving)

    def flat(self) -> dict[str, Scalar]:
        """Return the value of every setting that this run uses, by key."""
        values: dict[str, Scalar] = {}
        for group in self.groups:
            for field in fields(group):
                values[group.key(field.name)] = getattr(group, field.name)
        return values

    def error(self, key: str, rule: str, remedy: Remedy = "") -> SettingError:
        """Return the error of a setting's value."""
        return SettingError(key, self.flat()[key], rule, remedy=remedy)

    def run_config(self) -> dict[str, Scalar]:
        """Return the settings as a run config for `flwr run`.

        flwr refuses keys that pyproject.toml does not declare, so the settings of plugins go into one JSON text, under
        the key method-settings.
        """
        own_sections: set[str] = set()
        for name in self.parts.names:
            own_sections |= {part.name for part in METHODS[name].parts}
        config = self.flat()
        # A part may be called as a setting: momentum.share is its, momentum is not.
        own = {
            key: config.pop(key) for key in list(config) if key.rpartition(".")[0] in own_sections
        }
        if own:
            config["method-settings"] = json.dumps(own)
        return config

    @property
    def keeps_features(self) -> bool:
        """Whether the trained model's inputs are a frozen backbone's features, which are computed once and kept."""
        return self.model.freeze == "all" or self.model.components > 0

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input of the trained model; (D,) where features are kept."""
        if self.keeps_features:
            return (kept_width(self.general.model, self.model),)
        return self.data.shape

    @property
    def has_fixed_features(self) -> bool:
        """Whether training changes only the head, and the features stay fixed."""
        return has_fixed_features(self.general.model, self.model.freeze, self.model.hidden)

    @cached_property
    def has_batch_norm(self) -> bool:
        """Whether the model has batch norm. Raises SettingError for inputs that it cannot take."""
        return takes_batch_norm(self.general.model, self.data, self.model)

    @property
    def clients_per_pass(self) -> int:
        """The setting clients-per-pass, 0 resolved; a site is one client."""
        stated = self.training.clients_per_pass
        if stated:
            return stated
        trains_backbone = is_backbone(self.general.model) and self.model.freeze != "all"
        if self.agreement is not None or trains_backbone:
            return 1
        classes = self.data.num_classes
        model = sized_model(self.general.model, self.input_shape, classes, self.model)
        return fitting_clients(model, self.input_shape, self.training.batch_size)

    @cached_property
    def weights_sha256(self) -> str:
        """The sha256 of the backbone's weights file when the run id was computed; "" without a file."""
        return sha256_of(self.model.weights) if self.model.weights else ""

    @property
    def hashed_model(self) -> ModelSettings:
        """The model settings with the sha256 in the run id: a weights file that has changed since is not loaded."""
        return of_hash(self.model, self.weights_sha256) if self.model.weights else self.model

    @cached_property
    def agreement(self) -> Agreement | None:
        """The content of federation.toml; None in a simulation. Raises DataError if the file has been changed."""
        if is_sites(self.data.dataset):
            return agreement_of(self.data.dataset)
        return None

    @property
    def server_device(self) -> str:
        """The setting device for the server: cuda is about the clients, and the server may have no GPU."""
        return "auto" if self.general.device == "cuda" else self.general.device

    @property
    def exchange_in_force(self) -> ExchangeSettings:
        """The exchange settings of this run; between sites, the agreement's min-sites replaces min-reply-share."""
        if self.agreement is None:
            return self.exchange
        share = self.agreement.min_sites / len(self.agreement.sites)
        return replace(self.exchange, min_reply_share=share)

    @cached_property
    def run_id(self) -> str:
        """The run id and name of the run's folder: DATASET-METHOD-seedN-HASH, between sites sites-NAME-METHOD-...

        The hash covers every setting that can change the run's numbers, except those at their defaults. So a setting
        that a later version adds changes no id. For the same reason a default must never change: two runs with
        different numbers would get the same id. A test compares all defaults with a stored table.

        Values such as `auto` are hashed as resolved: writing out what they stand for gives the same id. The id is
        computed once, so that a run keeps it if the user's model file changes while the run trains.
        """
        if self.known_run_id:
            return self.known_run_id
        hashed = json.dumps(self.hashed_settings(), sort_keys=True)
        settings_hash = hashlib.sha256(hashed.encode()).hexdigest()[:10]
        method = self.general.method.replace(":", ".")
        if self.agreement is not None:
            data = f"sites-{self.agreement.name}"
        else:
            data = without_path(self.data.dataset)
        # For a folder's name: a-z, 0-9 and -, at most 40 characters.
        in_words = re.sub(r"[^a-z0-9]+", "-", data.lower()).strip("-")[:40]
        return f"{in_words}-{method}-seed{self.general.seed}-{settings_hash}"

    def hashed_settings(self) -> dict[str, object]:
        """Return the settings and file hashes from which the hash in the run id is computed."""
        settings: dict[str, object] = {}
        for group in self.groups:
            for field in fields(group):
                if not group.is_default(field.name):
                    settings[group.key(field.name)] = getattr(group, field.name)
        for key in WITHOUT_EFFECT_ON_NUMBERS:
            settings.pop(key, None)
        # A file is hashed by its content, not by its path.
        if self.agreement is not None:
            settings["dataset"] = in_messages(self.agreement)
        if self.model.weights:
            settings["weights"] = self.weights_sha256
        if is_own_model(self.general.model):
            load("model", self.general.model, "function")  # only imported modules have a hash
            module, _, _ = self.general.model.partition(":")
            settings["model's files"] = source_hash(module)
        sources = sources_of(self.parts.names)
        if sources:
            settings["method's files"] = sources
        return settings

    @property
    def folder(self) -> Path:
        """The run's own folder."""
        return Path(self.general.results) / self.run_id

    def going_on(self) -> "RunSettings":
        """Return the settings that continue this run: overwrite = false, and the run id as it is.

        The id stays even if the user's model file has changed meanwhile.
        """
        general = replace(self.general, overwrite=False)
        return replace(self, general=general, known_run_id=self.run_id)

    def run_spec(self) -> RunSpec:
        """Return the settings that clients need; between sites without any path of the server."""
        folder, data, model_settings = self.folder, self.data, self.model
        if self.agreement is not None:
            folder = Path(self.run_id)
            data = replace(data, dataset=in_messages(self.agreement))
            if self.model.weights:
                agreed = self.agreement.weights_in_messages
                model_settings = replace(self.model, weights=agreed)
        return RunSpec(
            data=data,
            training=self.training,
            model=self.general.model,
            model_settings=model_settings,
            variants=self.variants,
            seed=self.general.seed,
            device=self.general.device,
            folder=folder,
            code=code_version(),
            rounds=self.general.rounds,
        )


def without_path(dataset: str) -> str:
    """Return a data set's name for the run id: of the user's own files and folders only the last part of the path."""
    names = members(dataset)
    if not any(map(is_own, names)):
        return dataset
    shown = []
    for name in names:
        _, _, path = name.partition(":")
        shown.append(Path(path).name if is_own(name) else name)
    return " ".join(shown)


def takes_batch_norm(name: str, data: DataSettings, settings: ModelSettings) -> bool:
    """Return whether a model for these data has batch norm. Raises SettingError for inputs that it cannot take."""
    return has_batch_norm(sized_model(name, data.shape, data.num_classes, settings))


@lru_cache(maxsize=4)
def sized_model(
    name: str, shape: tuple[int, ...], classes: int, settings: ModelSettings
) -> Classifier:
    """Return a model for the names and sizes of its tensors. Raises SettingError for inputs that it cannot take."""
    return build(name, shape, classes, 0, settings)


def model_line(settings: RunSettings) -> str:
    """Return the name and the size of a run's model, and what a client uploads of it in a round."""
    name = settings.general.model
    model = sized_model(name, settings.input_shape, settings.data.num_classes, settings.model)
    private = private_names(model, settings.variants)
    shared = {key: tensor for key, tensor in model.tensors.items() if key not in private}
    upload = size(shared)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    size_text = f"{upload:,} bytes"
    if upload >= 1e5:
        size_text = f"{upload / 1e6:,.2f} MB"
    return f"{name}, {parameters:,} parameters, {size_text} per upload"
