"""Settings: strict parsing and resolution of a user's values, defaults, explanations, and flwr's TOML."""

import ast
import inspect
import json
import re
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
import torch

from client_app.client import Variant, affects_training, overrides
from client_app.local_site import QUESTION, RUN_SIGNATURE
from client_app.models import (
    FIXED_FEATURES,
    RANDOM_CONV,
    ModelSettings,
    build,
    check,
    has_batch_norm,
    has_fixed_features,
    is_backbone,
    is_own_model,
)
from client_app.models.backbone import check_weights, normalization_of, sha256_of
from client_app.models.outline import without_numbers
from client_app.optimizer import TrainingSettings
from client_app.ranking import MOST_RANKED
from client_app.variants import VARIANTS
from data import DataSettings, SettingError, Settings, require, resolve
from data.agreement import Agreement
from data.readers.catalog import KNOWN, has_domains, is_sites, members
from data.renamed_settings import OLD_NAMES, renamed
from data.sites import agreement_of
from server_app.best_round import RANKINGS
from server_app.composition import (
    ComposedMethod,
    closed_form_methods,
    compose,
    section_types,
    with_head_start,
)
from server_app.keys import no_such, read_text, read_texts
from server_app.methods import METHODS, Method
from server_app.plugins import load_agreed_module, register, sources_of
from server_app.run_settings import GeneralSettings, RunSettings, Scalar
from strategies.core.exchange_settings import ExchangeSettings
from strategies.core.server import needs_holdout

Group = TypeVar("Group", bound=Settings)
PROTOCOL, PROTOCOLS = "protocol", ("clients", "plain")
"""The key of flwr's run config that names the protocol, and its values: FedSkew's own messages, or those of FedAvg."""
NOT_SETTINGS = (QUESTION, RUN_SIGNATURE, PROTOCOL)
"""Keys of flwr's run config that are no settings of a run."""
FIX_FEATURES = f"freeze = all beside a backbone, or model = {' or '.join(FIXED_FEATURES)}"
"""How features stay as they are."""
SUITABLE_MODELS = {
    "abide": "abide-mlp", "office": "alexnet-bn", "pacs": "alexnet-bn", "domainnet": "alexnet-bn",
    "cinic10": "resnet-18", "tiny-imagenet": "resnet-50", "imagenet-lt": "resnet-50-imagenet",
    "scanners": "mlp-bn",
}  # fmt: skip
"""What `model = auto` stands for, by data set or by family of domains; the papers' but for pacs and scanners."""


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
    config = renamed(with_method_settings(config))
    method, model, dataset = (str(config.get(key, "")) for key in ("method", "model", "dataset"))
    load_agreed_module(method, model, dataset)
    register(method)
    default_values = defaults()
    values = {}
    for key, value in config.items():
        if key not in default_values:
            raise no_such(key, value, default_values)
        values[key] = typed(key, value, type(default_values[key]))
    parts = compose(str(values.get("method", default_values["method"])))
    values |= chosen_by_method(values, parts)
    general = built(GeneralSettings, values)
    parts = with_head_start(parts, general.head_start)
    refuse_idle(values, parts)
    training = built(TrainingSettings, values)
    about = built(ModelSettings, values)
    data = resolve(built(DataSettings, values))
    types = section_types()
    sections: dict[str, Any] = {name: built(types[name], values) for name in parts.sections}
    if is_sites(data.dataset):
        check_between_sites(general, about, sections, parts, data.dataset)
    for name in parts.serving:
        if sections[name].needs_holdout and not data.holdout_per_class:
            raise needs_holdout(name)
    check_rounds(general, data, sections, parts)
    check_positive_class(general, data)
    check_keep_best(general, data)
    training = with_schedule(training, general.rounds)
    check_training(training, sections, parts)
    check_finetuning(training, general, [VARIANTS[name] for name in parts.variants])
    model = suitable_model(data) if general.model == "auto" else general.model
    if about.weights and is_backbone(model):
        data = normalized(data, values, model)
    check_model(model, about, data)
    check_fixed_features(model, about, general, sections, parts)
    check_head_start(general, data, sections, parts)
    normalizes = uses_batch_norm(model, data.shape, data.num_classes, about)
    check_variants(general, model, about, data, normalizes, sections, parts)
    if normalizes:
        rule = (
            f"must be at least 2, because {model} has batch norm, which cannot train on one sample"
        )
        training.require(training.batch_size >= 2, "batch_size", rule)

    general = replace(
        general, model=model, method="+".join(parts.names), results=absolute(general.results)
    )
    # Relative paths of npz: and folder: begin in the user's folder, and clients may run elsewhere.
    has_path = ":" in data.dataset and not is_sites(data.dataset)
    data_root = data.data_root or ("." if has_path else "")
    data = replace(data, data_root=absolute(data_root), cache=absolute(data.cache))
    return RunSettings(
        general=general,
        model=replace(about, weights=absolute(about.weights)),
        data=data,
        training=training,
        exchange=built(ExchangeSettings, values),
        parts=parts,
        variants=tuple(sections[name] for name in parts.variants),
        combine=sections[parts.combine],
        monitors=tuple(sections[name] for name in parts.monitors),
        deploys=tuple(sections[name] for name in parts.deploys),
        head_start=sections[parts.head_start] if parts.head_start else None,
    )


def with_method_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings with those that method-settings holds. Raises SettingError where that is no such JSON."""
    text = config.get("method-settings", "")
    if not text:
        return config
    try:
        stated = json.loads(text)
    except (TypeError, ValueError):
        stated = None
    fits = isinstance(stated, dict) and all("." in key for key in stated)
    rule = 'must be JSON of settings by key: {"my-part.power": 0.5}'
    require(fits, "method-settings", text, rule)
    return {**config, "method-settings": "", **stated}


def normalized(data: DataSettings, stated: Mapping[str, Scalar], model: str) -> DataSettings:
    """Return the data's settings with mean and std of the weights' own training, where they are not stated.

    Between sites federation.toml states them.
    """
    of_model = normalization_of(model)
    if of_model is None or len(data.shape) != 3 or is_sites(data.dataset):
        return data
    mean, std = of_model
    if data.shape[0] != 3:
        mean = (statistics.fmean(mean),)
        std = (statistics.fmean(std),)
    if not stated.get("mean"):
        data = replace(data, mean=as_text(mean))
    if not stated.get("std"):
        data = replace(data, std=as_text(std))
    return data


def as_text(values: Iterable[float]) -> str:
    """Return numbers as the settings mean and std hold them."""
    return ",".join(f"{value:g}" for value in values)


def suitable_model(data: DataSettings) -> str:
    """Return the model that `model = auto` stands for: the data set's, or one for inputs of its shape."""
    for name in members(data.dataset)[:1]:
        if name not in KNOWN:
            continue
        model = SUITABLE_MODELS.get(name) or SUITABLE_MODELS.get(KNOWN[name].family)
        if model:
            return model
    if len(data.shape) == 1:
        return "mlp-bn"
    if has_domains(data.dataset) or data.dataset == "mnist-m":
        return "digit-model"
    if data.shape[0] == 1:
        return "small-cnn" if data.shape[1] < 20 else "mcmahan-cnn"
    return "resnet-8"


def check_positive_class(general: GeneralSettings, data: DataSettings) -> None:
    """Raise SettingError for a positive class that is no class of the data, or of data with more than two classes."""
    if not general.positive_class:
        return
    names = data.class_names
    rule = f"has no effect: {data.dataset} has {len(names)} classes, and numbers of two have a positive one"
    general.require(len(names) == 2, "positive_class", rule)
    rule = f"must be one of {', '.join(names)}"
    general.require(general.positive_class in names, "positive_class", rule)


def check_keep_best(general: GeneralSettings, data: DataSettings) -> None:
    """Raise SettingError for keep-best where no round has its metric on validation data.

    Whether one's own data have validation samples is known when they are read: `best_round.refuse_unvalidated`.
    """
    if not general.keep_best:
        return
    rule = "needs validation data, and sites keep theirs to themselves"
    general.require(not is_sites(data.dataset), "keep_best", rule)
    rule = "needs validation data, and evaluate-on = validation makes them the test set"
    general.require(data.evaluate_on == "test", "keep_best", rule, "use evaluate-on = test")
    ranked = general.keep_best not in RANKINGS or data.num_classes <= MOST_RANKED
    rule = (
        f"is measured for at most {MOST_RANKED} classes, and {data.dataset} has {data.num_classes}"
    )
    general.require(ranked, "keep_best", rule)


def check_rounds(
    general: GeneralSettings,
    data: DataSettings,
    sections: Mapping[str, Any],
    parts: ComposedMethod,
) -> None:
    """Raise SettingError for rounds = 0 where something of the method, or augmented images, would need rounds."""
    if general.rounds:
        return
    deploying = [name for name in parts.deploys if sections[name].closed_form]
    needing = [name for name in parts.names if needs_rounds(METHODS[name], sections)]
    rule = f"is for heads in closed form alone ({', '.join(closed_form_methods())})"
    if needing:
        rule = f"{rule}, and {' and '.join(needing)} trains"
    general.require(bool(deploying) and not needing, "rounds", rule)
    rule = "has no effect with rounds = 0: heads in closed form are made of images as they are"
    data.require(data.augmentation == "none", "augmentation", rule)


def with_schedule(training: TrainingSettings, rounds: int) -> TrainingSettings:
    """Return the training settings with the run's rounds for the length of a cosine schedule that has none."""
    if training.schedule != "cosine" or training.schedule_rounds:
        return training
    return replace(training, schedule_rounds=rounds)


def check_training(
    training: TrainingSettings,
    sections: Mapping[str, Any],
    parts: ComposedMethod,
) -> None:
    """Raise SettingError for a local optimizer, a schedule or a pass that a part of the method cannot take."""
    for name in parts.sections:
        section = sections[name]
        is_variant = name in parts.variants
        needs_sgd = section.requirements.sgd if is_variant else section.needs_sgd
        if needs_sgd:
            rule = f"does not go with {name}, whose equations assume SGD"
            training.require(training.optimizer == "sgd", "optimizer", rule, "use optimizer = sgd")
            rule = f"does not go with {name}, whose equations assume one rate in a round"
            by_round = training.schedule_unit == "round"
            training.require(by_round, "schedule_unit", rule, "use schedule-unit = round")
        if is_variant and section.requirements.teacher:
            rule = f"does not go with {name}: torch.vmap cannot map its second model over clients"
            training.require(training.clients_per_pass == 1, "clients_per_pass", rule)


def check_finetuning(
    training: TrainingSettings, general: GeneralSettings, variants: Sequence[type[Variant]]
) -> None:
    """Raise SettingError for fine-tuning that could not be as it is stated.

    That of a run that trains no model, or whose rate is 0 at its end, or with the draws of a method that has none.
    """
    if not training.finetune_epochs:
        return
    draws = any(overrides(variant, "sample_weights") for variant in variants)
    rule = "needs a method that draws samples, as iwds"
    training.require(training.finetune_sampling == "shuffle" or draws, "finetune_sampling", rule)
    rule = "has no model to begin with: nobody trains with rounds = 0"
    training.require(general.rounds > 0, "finetune_epochs", rule)
    rule = "has no effect: the learning rate of the last round is 0"
    remedy = "a larger schedule-rounds leaves one"
    training.require(training.rate(general.rounds) > 0, "finetune_epochs", rule, remedy)


def needs_rounds(method: Method, sections: Mapping[str, Any]) -> bool:
    """Return whether a method is more than a head in closed form."""
    trains = any(affects_training(VARIANTS[name]) for name in method.variants)
    of_rounds = any(not sections[name].closed_form for name in method.serving)
    return trains or of_rounds or not method.deploy


def check_fixed_features(
    model: str,
    about: ModelSettings,
    general: GeneralSettings,
    sections: Mapping[str, Any],
    parts: ComposedMethod,
) -> None:
    """Raise SettingError for a head in closed form on features that training changes."""
    heads = [name for name in parts.deploys if sections[name].closed_form]
    fixed = has_fixed_features(model, about.freeze)
    rule = f"needs features that stay as they are: {FIX_FEATURES}"
    general.require(not heads or fixed, "method", f"{' and '.join(heads)} {rule}")
    general.require(not general.head_start or fixed, "head_start", rule)


def check_head_start(
    general: GeneralSettings,
    data: DataSettings,
    sections: Mapping[str, Any],
    parts: ComposedMethod,
) -> None:
    """Raise SettingError for a first head of other images than those trained on, or that no client would receive."""
    if not general.head_start:
        return
    rule = (
        f"does not go with head-start = {general.head_start}, which is made of images as they are"
    )
    data.require(data.augmentation == "none", "augmentation", rule)
    alone = any(sections[name].requirements.separate_models for name in parts.variants)
    rule = f"has no effect beside method = {general.method}, which shares no head"
    general.require(not alone, "head_start", rule)


def check_model(model: str, about: ModelSettings, data: DataSettings) -> None:
    """Raise SettingError for settings of the model that do not go with it, with its weights, or with the data."""
    check(model, data.shape, about)
    if is_backbone(model) or model == RANDOM_CONV:
        # `check` lets vectors through where they can be the features of a network, which data never are.
        rule = f"takes images, and the data are vectors of {data.input_shape}"
        remedy = "model = linear takes these"
        require(len(data.shape) == 3, "model", model, rule, remedy=remedy)
    if about.weights:
        check_weights(model, absolute(about.weights))
    if about.freeze == "all":
        rule = (
            "has no effect on features that are kept (freeze = all): an image's are computed once"
        )
        data.require(data.augmentation == "none", "augmentation", rule)
        data.require(not data.noise, "noise", rule)
    if about.lift:
        fixed = has_fixed_features(model, about.freeze)
        about.require(fixed, "lift", f"needs features that stay as they are: {FIX_FEATURES}")
    if about.norm == "group":
        plain = ModelSettings()
        has_effect = uses_batch_norm(model, data.shape, data.num_classes, plain)
        about.require(has_effect, "norm", f"has no effect: {model} has no batch norm")


def check_variants(
    general: GeneralSettings,
    model: str,
    about: ModelSettings,
    data: DataSettings,
    normalizes: bool,
    sections: Mapping[str, Any],
    parts: ComposedMethod,
) -> None:
    """Raise SettingError for a variant that does not go with the model or with the data.

    `normalizes` says whether the model has batch norm.
    """
    not_images = "" if len(data.shape) == 3 else f"vectors of {data.input_shape}"
    if about.freeze == "all":
        not_images = "kept features"
    fixed = has_fixed_features(model, about.freeze)
    for name in parts.variants:
        variant = sections[name]
        requirements = variant.requirements
        rule = f"has no batch norm, which {general.method} keeps local ({name})"
        require(normalizes or not requirements.batch_norm, "model", model, rule)
        rule = f"has no layer that {general.method} would share: none but the head trains ({name})"
        require(not (fixed and requirements.own_head), "model", model, rule)
        rule = f"changes images ({name}), and the inputs are {not_images}"
        general.require(not (requirements.images and not_images), "method", rule)
        variant.check(data)


def check_between_sites(
    general: GeneralSettings,
    about: ModelSettings,
    sections: Mapping[str, Any],
    parts: ComposedMethod,
    dataset: str,
) -> None:
    """Raise SettingError for what does not go with sites, of whose samples and modules the server knows nothing."""
    beside = "does not go with dataset = sites:FILE"
    agreement = agreement_of(dataset)
    no_module = f"{beside}: no site imports a module that a message names{agreed_code(agreement)}"
    model_module, colon, _ = general.model.partition(":")
    is_agreed = general.model == agreement.backbone
    if is_own_model(general.model):
        is_agreed = model_module == agreement.module
    general.require(not colon or is_agreed, "model", no_module)
    check_agreed_weights(general, about, agreement)
    for name in sources_of(parts.names):
        modules = {part.__module__ for part in METHODS[name].parts}
        general.require(modules == {agreement.module}, "method", no_module)
    rule = f"{beside}: every site that is there takes part"
    general.require(general.participation == 1, "participation", rule)
    for name in parts.deploys:
        asks = sections[name].asks if sections[name].closed_form else ""
        apart = agreement.masked and asks and sections[asks].upload.by_client
        rule = f"needs each site's own sums, and federation.toml says sums = masked: {name}"
        general.require(not apart, "method", rule)
    for name in parts.variants:
        upload = sections[name].upload
        as_sum = upload.of_counts is not None or (
            upload.shapes is not None and not upload.by_client
        )
        summed = as_sum or not upload.question
        rule = f"needs each site's own answer, and federation.toml says sums = masked: {name}"
        general.require(summed or not agreement.masked, "method", rule)
    for name in parts.serving:
        rule = f"{beside}: {name} needs images of the server's own, and it has none"
        general.require(not sections[name].needs_holdout, "method", rule)


def agreed_code(agreement: Agreement) -> str:
    """Return what federation.toml agrees on in place of a module in a message, as the end of a sentence."""
    agreed = []
    if agreement.backbone:
        agreed.append(f"the backbone {agreement.backbone}")
    if agreement.module:
        agreed.append(f"the module {agreement.module}")
    return f", and federation.toml agrees on {' and '.join(agreed)}" if agreed else ""


def check_agreed_weights(
    general: GeneralSettings, about: ModelSettings, agreement: Agreement
) -> None:
    """Raise SettingError for a file of weights other than the one that all sites agree to."""
    if not about.weights:
        return
    beside = "does not go with dataset = sites:FILE"
    agreed = agreement.backbone != "" and general.model == agreement.backbone
    rule = f"{beside}: no site reads a file that a message names"
    if agreement.backbone:
        rule = f"{beside}: federation.toml agrees on weights of {agreement.backbone}"
    about.require(agreed, "weights", rule)
    here = sha256_of(absolute(about.weights))
    rule = f"has sha256 {here}, and federation.toml agrees on {agreement.weights}"
    about.require(here == agreement.weights, "weights", rule)


def typed(key: str, value: object, expected: type) -> Scalar:
    """Return the value as its `kind`; an integer serves as a float. Raises SettingError for another type."""
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not expected:
        names = {
            bool: "true or false",
            int: "an integer",
            float: "a number",
            str: "text",
        }
        raise SettingError(key, value, f"must be {names[expected]}")
    return value  # type: ignore[return-value]


def built(group: type[Group], values: Mapping[str, Scalar]) -> Group:
    """Return a group of settings, made of the values stated for it. Raises SettingError for one out of range."""
    arguments = {}
    for field in fields(group):
        key = group.key(field.name)
        if key in values:
            arguments[field.name] = values[key]
    return group(**arguments)


def chosen_by_method(values: Mapping[str, Scalar], parts: ComposedMethod) -> dict[str, Scalar]:
    """Return what the method's name sets; a key stated at its own default counts as left out, as flwr states them all.

    Raises SettingError for a value that contradicts what the name means.
    """
    default_values = defaults()
    by_user = {key: value for key, value in values.items() if value != default_values[key]}
    for key, value in parts.fixed.items():
        if by_user.get(key, value) != value:
            method = "+".join(parts.names)
            raise SettingError(key, by_user[key], f"method {method} means {value!r}")

    chosen = {**parts.defaults, **parts.fixed}
    for key in by_user:
        chosen.pop(key, None)
    return chosen


def refuse_idle(values: Mapping[str, Scalar], parts: ComposedMethod) -> None:
    """Raise SettingError for a setting that differs from its default and would change nothing beside the parts."""
    default_values = defaults()
    idle: dict[str, str] = {}
    for name in parts.variants:
        variant = VARIANTS[name]
        beside = f"beside {variant.name}, which"
        for key, why in variant.requirements.ignored_settings.items():
            idle[key] = f"{beside} {why}"
        if variant.requirements.separate_models:
            combining = [key for key in default_values if key.startswith(f"{parts.combine}.")]
            idle |= dict.fromkeys(combining, f"{beside} shares nothing")
    for key, value in values.items():
        if value == default_values[key]:
            continue
        section, _, _ = key.rpartition(".")
        if section and section not in parts.sections:
            method = "+".join(parts.names)
            raise SettingError(key, value, f"has no effect: method {method} does not use {section}")
        if key in idle:
            raise SettingError(key, value, f"has no effect {idle[key]}")


@lru_cache
def uses_batch_norm(model: str, shape: tuple[int, ...], classes: int, about: ModelSettings) -> bool:
    """Return whether the model has batch norm. Raises SettingError for inputs that it cannot take."""
    # The weights do not matter, but a model of the user's own may compute while it is made.
    with torch.device("cpu") if is_own_model(model) else without_numbers():
        return has_batch_norm(build(model, shape, classes, 0, about))


def absolute(folder: str) -> str:
    """Return the folder as an absolute path, because clients may run elsewhere; empty stays empty."""
    return str(Path(folder).expanduser().resolve()) if folder else ""


def parse_text(assignment: str) -> tuple[str, Scalar]:
    """Return key and value of `key=value` from a command line; the key's own type decides how the value is read."""
    return read_text(assignment, defaults())


def parse_texts(assignments: Iterable[str]) -> dict[str, Scalar]:
    """Return the settings of several `key=value`. Raises SettingError for a key stated twice: which would count?"""
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

    Three of them are no settings. QUESTION may name a file: then the sites are asked whether they are ready for the
    run, and nothing else, and their answers go there. RUN_SIGNATURE is the coordinator's, which the sites read.
    PROTOCOL says how the server speaks to the nodes.
    """
    config: dict[str, Any] = {QUESTION: "", RUN_SIGNATURE: "", PROTOCOL: PROTOCOLS[0]}
    for key, value in defaults().items():
        section, _, name = key.rpartition(".")
        table = config.setdefault(section, {}) if section else config
        table[name] = value
        # flwr refuses a key that is not here, so the old name of a renamed setting is here as well.
        if key in OLD_NAMES:
            _, _, old_name = OLD_NAMES[key].rpartition(".")
            table[old_name] = value
    return tomli_w.dumps({"tool": {"flwr": {"app": {"config": config}}}})


def write_toml(path: Path) -> None:
    """Replace the block in a pyproject.toml by `as_toml`."""
    block = r"^\[tool\.flwr\.app\.config\]\n(?:(?!\[(?!tool\.flwr\.app\.config)).*\n)*"
    text = path.read_text()
    path.write_text(re.sub(block, lambda match: as_toml() + "\n", text, flags=re.MULTILINE))


if __name__ == "__main__":
    write_toml(Path(sys.argv[1]))
