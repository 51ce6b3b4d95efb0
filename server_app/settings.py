"""A run's settings: parsed strictly, resolved fully, and hashed into the run's id."""

import ast
import difflib
import hashlib
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import Field, asdict, dataclass, fields, replace
from functools import cached_property, lru_cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Le, Lt

from client_app.assignment import Assignment
from client_app.client import Variant
from client_app.models import MODELS, build, has_batch_norm, is_own_model, source_hash
from client_app.optimizer import TrainingSettings
from client_app.process import code_version
from client_app.variants import VARIANTS
from client_app.variants.norm_statistics import PrivateNorm
from data import DataSettings, OneOf, Rule, SettingError, Settings, require, resolve
from data.settings import USED_BY
from data.sources.catalog import has_domains
from server_app.methods import Parts, compose, section_types
from server_app.suitable_model import suitable_model
from strategies.exchange import ExchangeSettings
from strategies.fedavg import FedAvg
from strategies.server import ServerMethod, needs_holdout
from strategies.server_optimizer import FORMS, ServerOptimizer

Scalar = bool | int | float | str


MODEL = Rule(
    lambda name: name in ("auto", *MODELS) or is_own_model(name),
    f"must be MODULE:FUNCTION or one of {', '.join(('auto', *MODELS))}",
)
TENSORBOARD = Rule(
    lambda asked: not asked or find_spec("tensorboard") is not None,
    "needs the package tensorboard: pip install 'fedskew[tensorboard]'",
)


@dataclass(frozen=True)
class GeneralSettings(Settings):
    """What is run, for how long, and where the results go."""

    method: str = "fedshift"
    """One method, or several that compose, as in fedshift+fedbn+iwds."""
    model: Annotated[str, MODEL] = "auto"
    """A model of `fedskew list models`, or one's own as MODULE:FUNCTION; auto is the papers' choice for the data."""
    rounds: Annotated[int, Ge(1)] = 20
    """Communication rounds."""
    participation: Annotated[float, Gt(0), Le(1)] = 1.0
    """Share C of the clients that take part in a round: floor(C N), at least one."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random: data draws, partition, first weights, sampling, batches."""
    evaluate_every: Annotated[int, Ge(0)] = 1
    """Rounds between evaluations; the last round is always evaluated, 0 evaluates nothing else."""
    server_learning_rate: Annotated[float, Gt(0)] = 1.0
    """Learning rate of the server optimizer."""
    server_momentum: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Momentum of the server optimizer."""
    server_momentum_form: Annotated[str, OneOf(*FORMS)] = "heavy-ball"
    """heavy-ball, nesterov or damped: how the server's momentum enters."""
    device: Annotated[str, OneOf("auto", "cpu", "cuda")] = "auto"
    """auto (a GPU where a client sees one), cpu or cuda."""
    results: Annotated[str, Rule(lambda path: bool(path.strip()), "must name a folder")] = "results"
    """Folder of the runs' folders."""
    fresh: bool = False
    """Start again even when the run is finished or can be resumed."""
    tensorboard: Annotated[bool, TENSORBOARD] = False
    """Also write every round's numbers for TensorBoard, into the folder tensorboard of the run's."""

    @property
    def server_optimizer(self) -> ServerOptimizer:
        """Return the server optimizer that is set."""
        return ServerOptimizer(self.server_learning_rate, self.server_momentum, self.server_momentum_form)


GROUPS: dict[str, type[Any]] = {
    "general": GeneralSettings,
    "data": DataSettings,
    "training": TrainingSettings,
    "exchange": ExchangeSettings,
}
WITHOUT_EFFECT_ON_NUMBERS = {
    "device", "results", "fresh", "data-root", "download", "cache", "nodes", "node-wait", "timeout", "min-replies",
    "tensorboard", "max-image-pixels", "max-unpacked-mib",
}  # fmt: skip


@dataclass(frozen=True)
class RunSettings:
    """The settings of one run, with nothing left to choose."""

    general: GeneralSettings
    data: DataSettings
    training: TrainingSettings
    exchange: ExchangeSettings
    parts: Parts
    variants: tuple[Variant, ...]
    combine: ServerMethod
    monitors: tuple[ServerMethod, ...]
    deploys: tuple[ServerMethod, ...]

    def flat(self) -> dict[str, Scalar]:
        """Return every setting that is in force by its key."""
        result = {key_of(field): getattr(getattr(self, group), field.name) for group, field in flat_fields()}
        named: list[Variant | ServerMethod] = [*self.variants, self.combine, *self.monitors, *self.deploys]
        for part in named:
            result |= {f"{part.name}.{name.replace('_', '-')}": value for name, value in asdict(part).items()}
        return result

    @cached_property
    def run_id(self) -> str:
        """A name for everything that can change the run's numbers: what it is, and a hash of the settings.

        Made once, so that a run keeps its name when its own model's file is changed while it goes on.
        """
        told = {key: value for key, value in self.flat().items() if key not in WITHOUT_EFFECT_ON_NUMBERS}
        if is_own_model(self.general.model):
            told["model's file"] = source_hash(self.general.model)
        code = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:10]
        data = re.sub(r"[^a-z0-9]+", "-", self.data.dataset.lower()).strip("-")[:40]
        return f"{data}-{self.general.method}-seed{self.general.seed}-{code}"

    @property
    def folder(self) -> Path:
        """The run's own folder."""
        return Path(self.general.results) / self.run_id

    def going_on(self) -> "RunSettings":
        """Return the settings with fresh = false: the same run, whatever has become of its own model's file."""
        settings = replace(self, general=replace(self.general, fresh=False))
        vars(settings)["run_id"] = self.run_id
        return settings

    def assignment(self) -> Assignment:
        """Return the part that clients need."""
        return Assignment(
            data=self.data,
            training=self.training,
            model=self.general.model,
            variants=self.variants,
            seed=self.general.seed,
            device=self.general.device,
            folder=self.folder,
            code=code_version(),
        )


def parse(config: Mapping[str, Any]) -> RunSettings:
    """Return the settings that `config` states, defaults elsewhere; nothing is loaded.

    Raises SettingError, naming the key, the value and the rule, for an unknown key, a wrong type, a value out of range,
    a contradiction, and a setting that would have no effect.
    """
    kinds = {key_of(field): field for _, field in flat_fields()}
    kinds |= {f"{name}.{key_of(field)}": field for name, part in section_types().items() for field in fields(part)}
    values = {}
    for key, value in config.items():
        if key not in kinds:
            near = difflib.get_close_matches(key, kinds, 1, cutoff=0.5)
            raise SettingError(key, value, f"there is no such setting{f'; did you mean {near[0]}?' if near else ''}")
        values[key] = typed(key, value, kinds[key])

    def group(name: str, **more: Any) -> Any:
        stated = {f.name: values[key_of(f)] for g, f in flat_fields() if g == name and key_of(f) in values}
        return GROUPS[name](**{**stated, **more})

    general = group("general")
    parts = compose(general.method)
    values |= chosen_by_method(values, kinds, parts)
    refuse_idle(values, kinds, parts)
    sections = {name: built_section(name, values) for name in parts.sections}
    data = resolve(group("data"))
    for part in (sections[name] for name in parts.serving):
        if part.needs_holdout and not data.holdout_per_class:
            raise needs_holdout(part.name)
    model = suitable_model(data) if general.model == "auto" else general.model
    shape = tuple(int(side) for side in data.input_shape.split("x"))
    normalizes = uses_batch_norm(model, shape, len(data.classes.split(",")))
    for name in parts.variants:
        if VARIANTS[name].needs_batch_norm and not normalizes:
            raise SettingError("model", model, f"has no batch norm, which {general.method} keeps local ({name})")
        if isinstance(sections[name], PrivateNorm):
            refusing, rule = sections[name].refusing, f"must be below clients = {data.clients}"
            require(max(refusing, default=0) < data.clients, f"{name}.refused-by", sections[name].refused_by, rule)
        if VARIANTS[name].needs_images and len(shape) != 3:
            rule = f"changes images ({name}), and the inputs are vectors of {data.input_shape}"
            raise SettingError("method", general.method, rule)
    own = ":" in data.dataset  # npz: and folder: paths that are relative start where the user stands
    training = group("training")
    if normalizes:
        rule = f"must be at least 2, because {model} has batch norm, which cannot train on one sample"
        require(training.batch_size >= 2, "batch-size", training.batch_size, rule)
    return RunSettings(
        general=group("general", model=model, method="+".join(parts.names), results=absolute(general.results)),
        data=replace(data, data_root=absolute(data.data_root or own * "."), cache=absolute(data.cache)),
        training=training,
        exchange=group("exchange"),
        parts=parts,
        variants=tuple(sections[name] for name in parts.variants),
        combine=sections[parts.combine],
        monitors=tuple(sections[name] for name in parts.monitors),
        deploys=tuple(sections[name] for name in parts.deploys),
    )


@lru_cache
def uses_batch_norm(model: str, shape: tuple[int, ...], classes: int) -> bool:
    """Return whether the model has batch norm. Raises SettingError for inputs that it cannot take."""
    with torch.device("cpu" if is_own_model(model) else "meta"):  # the weights do not matter
        return has_batch_norm(build(model, shape, classes, 0))


def absolute(folder: str) -> str:
    """Return the folder as an absolute path, because clients may run elsewhere; empty stays empty."""
    return str(Path(folder).expanduser().resolve()) if folder else ""


def built_section(name: str, values: Mapping[str, Scalar]) -> Any:
    """Return the part `name` with the settings of its section."""
    part = section_types()[name]
    stated = {f.name: values[f"{name}.{key_of(f)}"] for f in fields(part) if f"{name}.{key_of(f)}" in values}
    return part(**stated)


def chosen_by_method(values: Mapping[str, Scalar], kinds: Mapping[str, Field[Any]], parts: Parts) -> dict[str, Scalar]:
    """Return what the method's name sets; a key stated at its own default counts as left out, as flwr states them all.

    Raises SettingError for a value that contradicts what the name means.
    """
    stated = {key for key, value in values.items() if value != kinds[key].default}
    for key, value in parts.fixed.items():
        if key in stated and values[key] != value:
            raise SettingError(key, values[key], f"method {'+'.join(parts.names)} means {value!r}")
    return {key: value for key, value in {**parts.defaults, **parts.fixed}.items() if key not in stated}


def refuse_idle(values: Mapping[str, Scalar], kinds: Mapping[str, Field[Any]], parts: Parts) -> None:
    """Raise SettingError for a setting that differs from its default and would change nothing."""
    partition = values.get("partition", "auto")
    if values.get("partition-file"):
        partition = "file"
    if partition == "auto":
        partition = "domains" if has_domains(str(values.get("dataset", ""))) else "lda"
    idle = {key: f"with partition = {partition}" for key, users in USED_BY.items() if partition not in users}
    if not values.get("unseen-domain"):
        idle |= {f"{name}.share-norm-statistics": "without unseen-domain" for name in parts.variants}
    if not values.get("server-momentum", 0.0):
        idle["server-momentum-form"] = "without server-momentum"
    for alone in (name for name in parts.variants if VARIANTS[name].shares_nothing):
        shared = ("server-learning-rate", "server-momentum", "server-momentum-form", f"{FedAvg.name}.weights-over",
                  "unseen-domain")  # fmt: skip
        idle |= dict.fromkeys(shared, f"beside {alone}, which shares nothing")
    for key, value in values.items():
        section = key.rpartition(".")[0]
        if value == kinds[key].default:
            continue
        if section and section not in parts.sections:
            raise SettingError(key, value, f"has no effect: method {'+'.join(parts.names)} does not use {section}")
        if key in idle:
            raise SettingError(key, value, f"has no effect {idle[key]}")


def typed(key: str, value: object, field: Field[Any]) -> Scalar:
    """Return the value in the field's type; an integer serves as a float. Raises SettingError for another type."""
    kind = type(field.default)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        names = {bool: "true or false", int: "an integer", float: "a number", str: "text"}
        raise SettingError(key, value, f"must be {names[kind]}")
    return value  # type: ignore[return-value]


def parse_text(assignment: str) -> tuple[str, Scalar]:
    """Return key and value of `key=value` from a command line; the key's own type decides how the value is read."""
    key, equals, text = (part.strip() for part in assignment.partition("="))
    require(equals == "=" and bool(key), "--set", assignment, "must be key=value")
    kinds = {name: type(default) for name, default in defaults().items()}
    if kinds.get(key) is bool and text.lower() in ("true", "false"):
        return key, text.lower() == "true"
    if kinds.get(key) in (int, float):
        for kind in (int, float):
            try:
                return key, kind(text)
            except ValueError:
                continue
    return key, text


def key_of(field: Field[Any]) -> str:
    """Return the setting's key: the field's name with hyphens."""
    return field.name.replace("_", "-")


def flat_fields() -> Iterator[tuple[str, Field[Any]]]:
    """Yield the group and the field of every setting outside the methods' sections."""
    for group, kind in GROUPS.items():
        for field in fields(kind):
            yield group, field


def defaults() -> dict[str, Scalar]:
    """Return every setting's default by its key, sections included."""
    result: dict[str, Any] = {key_of(field): field.default for _, field in flat_fields()}
    for name, part in section_types().items():
        result |= {f"{name}.{key_of(field)}": field.default for field in fields(part)}
    return result


def explanations() -> dict[str, str]:
    """Return what stands under every setting's field, by its key."""
    result = {}
    for prefix, kind in [*(("", k) for k in GROUPS.values()), *((f"{n}.", p) for n, p in section_types().items())]:
        for ancestor in reversed(kind.__mro__[:-1]):
            body = ast.parse(inspect.getsource(ancestor).lstrip()).body[0].body  # type: ignore[attr-defined]
            for line, below in pairwise(body):
                match line, below:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=text)):
                        result[prefix + name.replace("_", "-")] = " ".join(str(text).split())
    return {key: result[key] for key in defaults()}


def as_toml() -> str:
    """Return the block [tool.flwr.app.config]: every key that `flwr run --run-config` may override."""
    lines, section = ["[tool.flwr.app.config]"], ""
    for key, value in defaults().items():
        prefix, _, name = key.rpartition(".")
        if prefix != section:
            lines += ["", f"[tool.flwr.app.config.{prefix}]"]
            section = prefix
        lines.append(f"{name} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def write_toml(path: Path) -> None:
    """Replace the block in a pyproject.toml by `as_toml`."""
    block = r"^\[tool\.flwr\.app\.config\]\n(?:(?!\[(?!tool\.flwr\.app\.config)).*\n)*"
    text = path.read_text()
    path.write_text(re.sub(block, lambda match: as_toml() + "\n", text, flags=re.MULTILINE))


if __name__ == "__main__":
    write_toml(Path(sys.argv[1]))
