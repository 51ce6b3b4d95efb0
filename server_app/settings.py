"""Settings: strict parsing and resolution of a user's values, defaults, explanations, and flwr's TOML.

setting_rules.py has the rules between settings.
"""

import ast
import importlib.util
import inspect
import os
import re
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import TypeAdapter, ValidationError

from client_app.local_site import QUESTION, RUN_SIGNATURE
from client_app.models import ModelSettings, is_backbone, is_own_model
from client_app.models.backbone import normalization_of
from client_app.optimizer import TrainingSettings
from client_app.user_code import FOLDER
from client_app.variants import VARIANTS
from data import DataSettings, SettingError, Settings, require, resolve
from data.readers.catalog import KNOWN, SITES_PREFIX, has_domains, is_own, is_sites, members
from server_app.composition import ComposedMethod, compose, section_types
from server_app.keys import built, no_such, read_texts, typed
from server_app.plugins import register
from server_app.run_settings import GeneralSettings, RunSettings, Scalar
from server_app.setting_rules import check
from strategies.core.node_assignment import ExchangeSettings

NOT_SETTINGS = (QUESTION, RUN_SIGNATURE)
"""Keys of flwr's run config that are no settings of a run."""
RESULTS_OF_FLWR_RUN = "~/fedskew-results"
"""Folder of the results of a `flwr run` that names none: flwr then states the default, which is a relative path."""
PATHS = ("results", "data-root", "cache", "weights", "partition-file")
"""Settings that are paths. `dataset` may hold paths, too."""
OF_SHARED_WEIGHTS = (
    "server-optimizer", "server-learning-rate", "server-momentum", "server-momentum-form",
    "server-adaptivity",
)  # fmt: skip
"""Settings about what the clients share."""
SUITABLE_MODELS = {
    "abide": "abide-mlp", "office": "alexnet-bn", "pacs": "alexnet-bn", "domainnet": "alexnet-bn",
    "cinic10": "resnet-18", "tiny-imagenet": "resnet-50", "imagenet-lt": "resnet-50-imagenet",
    "scanners": "mlp-bn",
}  # fmt: skip
"""What `model = auto` stands for, by data set or by family of domains; the papers' but for pacs and scanners."""
SMALL_IMAGE = 64 * 64
"""Pixels up to which one's own images get resnet-8: it keeps their full size in its first block, so that a step at
1x224x224 takes 7.7 times as long as with resnet-18-imagenet, which in turn is nine times as large."""


def groups() -> Iterator[type[Settings]]:
    """Yield every class of settings: the run's, then the methods' parts, which have sections."""
    yield from (GeneralSettings, ModelSettings, DataSettings, TrainingSettings, ExchangeSettings)
    yield from section_types().values()


def defaults() -> dict[str, Scalar]:
    """Return every setting's default by its key, sections included."""
    return dict(defaults_of(tuple(groups())))


@lru_cache(maxsize=8)  # the groups change where a method of the user's own is loaded
def defaults_of(groups: tuple[type[Settings], ...]) -> dict[str, Scalar]:
    """Return the defaults of these groups by their keys. The dictionary is shared: do not change it."""
    by_key: dict[str, Any] = {}
    for group in groups:
        for field in fields(group):
            by_key[group.key(field.name)] = field.default
    return by_key


def parse(config: Mapping[str, Any]) -> RunSettings:
    """Return the settings that `config` states, defaults elsewhere; nothing is loaded.

    Raises SettingError, naming the key, the value and the rule, for an unknown key, a wrong type, a value out of range,
    a contradiction, and a setting that would have no effect.
    """
    values, parts = values_in_force(with_method_settings(config))
    general = built(GeneralSettings, values)
    training = built(TrainingSettings, values)
    about = built(ModelSettings, values)
    data = resolve(built(DataSettings, values))
    model = suitable_model(data) if general.model == "auto" else general.model
    if about.weights and is_backbone(model) and not is_sites(data.dataset):
        data = normalized(data, values, model)
    if training.schedule == "cosine" and not training.schedule_rounds:
        training = replace(training, schedule_rounds=general.rounds)
    # Relative paths of npz: and folder: begin in the user's folder, and clients may run elsewhere.
    has_path = ":" in data.dataset and not is_sites(data.dataset)
    data_root = data.data_root or ("." if has_path else "")
    types = section_types()
    sections: dict[str, Any] = {name: built(types[name], values) for name in parts.sections}
    run = RunSettings(
        general=replace(
            general, model=model, method="+".join(parts.names), results=absolute(general.results)
        ),
        model=replace(about, weights=absolute(about.weights)),
        data=replace(data, data_root=absolute(data_root), cache=absolute(data.cache)),
        training=training,
        exchange=built(ExchangeSettings, values),
        parts=parts,
        variants=tuple(sections[name] for name in parts.variants),
        combine=sections[parts.combine],
        deploys=tuple(sections[name] for name in parts.deploys),
    )
    check(run)
    if training.clients_per_pass:
        return run
    return replace(run, training=replace(training, clients_per_pass=run.clients_per_pass))


def absolute(folder: str) -> str:
    """Return the folder as an absolute path, because clients may run elsewhere; empty stays empty."""
    return str(Path(folder).expanduser().resolve()) if folder else ""


def values_in_force(config: Mapping[str, Any]) -> tuple[dict[str, Scalar], ComposedMethod]:
    """Return the values that `config` and its method state, and the method's parts.

    A key stated at its own default counts as left out. Raises SettingError for an unknown key, a wrong type, a value
    that contradicts what the method's name means, one that would change nothing beside the parts, and a default where
    the method's name implies another value.
    """
    register(*(str(config.get(key, "")) for key in ("method", "model", "dataset")))
    default_values = defaults()
    values: dict[str, Scalar] = {}
    for key, value in config.items():
        if key not in default_values:
            raise no_such(key, value, default_values)
        values[key] = typed(key, value, type(default_values[key]))
    parts = compose(str(values.get("method", default_values["method"])))
    by_user = {key: value for key, value in values.items() if value != default_values[key]}
    for key, value in by_user.items():
        check_beside(parts, key, value)
    for key, meant in parts.defaults.items():
        if key in values and key not in by_user and values[key] != meant:
            method = "+".join(parts.names)
            rule = f"is the default, which counts as not set, and method {method} means {meant!r}"
            raise SettingError(key, values[key], rule, remedy="leave it out")
    return {**values, **parts.defaults, **parts.fixed, **by_user}, parts


def check_beside(parts: ComposedMethod, key: str, value: Scalar) -> None:
    """Raise SettingError for a value that contradicts what the method's name means, or changes nothing beside it."""
    method = "+".join(parts.names)
    section, _, _ = key.rpartition(".")
    if key in parts.fixed and parts.fixed[key] != value:
        raise SettingError(key, value, f"method {method} means {parts.fixed[key]!r}")
    if section and section not in parts.sections:
        raise SettingError(key, value, f"has no effect: method {method} does not use {section}")
    separate = [name for name in parts.variants if "separate-models" in VARIANTS[name].needs]
    if separate and (section == parts.combine or key in OF_SHARED_WEIGHTS):
        rule = f"has no effect beside {separate[0]}, which shares nothing"
        raise SettingError(key, value, rule)


def settings_of_run_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in a run config of flwr that are not at their defaults, as flwr states all of them.

    flwr executes the app in the folder in which its SuperLink was started, which may be anybody's, and does not pass on
    where `flwr run` was typed. So no path may be relative, but that of data below an absolute data-root, and no
    module may be found in that folder.

    Raises SettingError for a relative path or such a module. Only `results` at its default becomes RESULTS_OF_FLWR_RUN.
    """
    usual = defaults()
    settings = {}
    for key, value in config.items():
        if key not in NOT_SETTINGS and (key not in usual or value != usual[key]):
            settings[key] = value
    settings.setdefault("results", RESULTS_OF_FLWR_RUN)
    for key in PATHS:
        require_absolute(key, str(settings.get(key, "")))
    dataset = str(settings.get("dataset", ""))
    if is_sites(dataset):
        require_absolute("dataset", dataset.removeprefix(SITES_PREFIX), SITES_PREFIX)
        return settings  # the module of a federation is agreed by its hash
    if not settings.get("data-root"):
        refuse_relative_data(dataset)
    model = str(settings.get("model", ""))
    if is_own_model(model):
        refuse_module_of_superlink("model", model)
    for name in str(settings.get("method", "")).split("+"):
        if ":" in name:
            refuse_module_of_superlink("method", name.strip())
    return settings


def require_absolute(key: str, path: str, prefix: str = "") -> None:
    """Raise SettingError for a relative path in flwr's run config; empty and ~ pass.

    `prefix` goes before the path in the setting's value, as in sites:FILE.
    """
    if not path or path.startswith(("/", "~")):
        return
    remedy = f"""--run-config "{key}='{prefix}$PWD/{path}'" is the one in the current folder"""
    raise SettingError(key, prefix + path, not_relative(), remedy=remedy)


def not_relative() -> str:
    """Return the rule about paths in flwr's run config."""
    return (
        f"must be an absolute path: a relative one begins in {Path.cwd()}, where Flower executes the app, and "
        "not where `flwr run` was typed"
    )


def refuse_relative_data(dataset: str) -> None:
    """Raise SettingError for data that would be read from the SuperLink's folder, as there is no data-root.

    A data set by its name is refused without data-root, but for those of scikit-learn and for domains.
    """
    for name in members(dataset) if ":" in dataset else ():
        _, _, path = name.partition(":")
        if is_own(name):
            is_safe = path.startswith(("/", "~"))
        else:
            is_safe = name in KNOWN and KNOWN[name].layout == "scikit-learn"
        if not is_safe:
            remedy = """--run-config "data-root='$PWD'" reads it in the current folder"""
            raise SettingError("dataset", dataset, not_relative(), remedy=remedy)


def refuse_module_of_superlink(key: str, name: str) -> None:
    """Raise SettingError if MODULE:NAME would be imported from the folder in which flwr's SuperLink was started."""
    if os.environ.get(FOLDER):
        return  # the engine of `fedskew run` names the user's folder
    module, _, _ = name.partition(":")
    package, _, _ = module.partition(".")
    here = Path.cwd()
    lies_here = package and ((here / package).is_dir() or (here / f"{package}.py").is_file())
    if lies_here and importlib.util.find_spec(package) is None:
        rule = (
            f"must be an installed module, or on PYTHONPATH: this one is only in {here}, where Flower executes the "
            "app, and not where `flwr run` was typed"
        )
        raise SettingError(key, name, rule)


def with_method_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings with those that method-settings holds. Raises SettingError where that is no such JSON."""
    text = config.get("method-settings", "")
    if not text:
        return config
    rule = 'must be JSON of settings by key: {"my-part.power": 0.5}'
    try:
        stated = TypeAdapter(dict[str, Scalar]).validate_json(str(text), strict=True)
    except ValidationError:
        raise SettingError("method-settings", text, rule) from None
    require(all("." in key for key in stated), "method-settings", text, rule)
    return {**config, "method-settings": "", **stated}


def normalized(data: DataSettings, stated: Mapping[str, Scalar], model: str) -> DataSettings:
    """Return the data's settings with mean and std of the weights' own training, where they are not stated."""
    of_model = normalization_of(model)
    if of_model is None or len(data.shape) != 3:
        return data
    texts: dict[str, Any] = {}
    for key, values in zip(("mean", "std"), of_model, strict=True):
        channels = values if data.shape[0] == 3 else (statistics.fmean(values),)
        if not stated.get(key):
            texts[key] = ",".join(f"{value:g}" for value in channels)
    return replace(data, **texts)


def suitable_model(data: DataSettings) -> str:
    """Return the model that `model = auto` stands for.

    For one's own data, and those of sites, it follows from the shape of the inputs alone, so that the same images get
    the same model in every form of files. Data sets of the catalog alone have the papers' model.
    """
    names = members(data.dataset)
    of_catalog = all(name in KNOWN for name in names)
    if of_catalog:
        first = names[0]
        model = SUITABLE_MODELS.get(first) or SUITABLE_MODELS.get(KNOWN[first].family)
        if model:
            return model
    if len(data.shape) == 1:
        return "mlp-bn"
    if not of_catalog:
        _, height, width = data.shape
        return "resnet-8" if height * width <= SMALL_IMAGE else "resnet-18-imagenet"
    if has_domains(data.dataset) or data.dataset == "mnist-m":
        return "digit-model"
    if data.shape[0] == 1:
        return "small-cnn" if data.shape[1] < 20 else "mcmahan-cnn"
    return "resnet-8"


def parse_texts(assignments: Iterable[str]) -> dict[str, Scalar]:
    """Return the settings of several `key=value` of a command line; each key's own type decides how its value is read.

    Raises SettingError for a key stated twice: which would count?
    """
    return read_texts(assignments, defaults())


def explanations() -> dict[str, str]:
    """Return what stands under every setting's field, by its key."""
    result = {}
    for group in groups():
        for ancestor in reversed(group.__mro__[:-1]):
            body = ast.parse(inspect.getsource(ancestor).lstrip()).body[0].body  # type: ignore[attr-defined]
            for line, below in pairwise(body):
                match line, below:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                        value=ast.Constant(value=text)
                    ):
                        result[group.key(name)] = " ".join(str(text).split())
    return {key: result.get(key, "") for key in defaults()}


def as_toml() -> str:
    """Return the block [tool.flwr.app.config]: every key that `flwr run --run-config` may override.

    Two of them are no settings. QUESTION may name a file: then the sites are asked whether they are ready for the
    run, and nothing else, and their answers go there. RUN_SIGNATURE is the coordinator's, which the sites read.
    """
    config: dict[str, Any] = {QUESTION: "", RUN_SIGNATURE: ""}
    for key, value in defaults().items():
        section, _, name = key.rpartition(".")
        table = config.setdefault(section, {}) if section else config
        table[name] = value
    return tomli_w.dumps({"tool": {"flwr": {"app": {"config": config}}}})


def write_toml(path: Path) -> None:
    """Replace the block in a pyproject.toml by `as_toml`."""
    block = r"^\[tool\.flwr\.app\.config\]\n(?:(?!\[(?!tool\.flwr\.app\.config)).*\n)*"
    text = path.read_text()
    path.write_text(re.sub(block, lambda match: as_toml() + "\n", text, flags=re.MULTILINE))


if __name__ == "__main__":
    write_toml(Path(sys.argv[1]))
