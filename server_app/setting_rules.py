"""Rules between settings of different groups: what contradicts itself, and what would have no effect.

A rule of one setting alone stands at its field, in its group's class. `settings.parse` asks the rules here, one after
the other: the first that is broken is the one that the user reads.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from client_app.client import Variant, affects_training, overrides
from client_app.models import (
    FIXED_FEATURES,
    MODELS,
    RANDOM_CONV,
    ModelSettings,
    check,
    has_batch_norm,
    has_fixed_features,
    is_backbone,
    is_own_model,
)
from client_app.models.backbone import check_weights, sha256_of
from client_app.optimizer import TrainingSettings
from client_app.ranking import MOST_RANKED
from client_app.variants import VARIANTS
from data import DataSettings, SettingError, require
from data.agreement import Agreement
from data.readers.catalog import is_sites
from data.sites import agreement_of
from server_app.best_round import RANKINGS
from server_app.composition import ComposedMethod, closed_form_methods
from server_app.methods import METHODS, Method
from server_app.plugins import sources_of
from server_app.run_settings import GeneralSettings, sized_model

FIX_FEATURES = f"freeze = all beside a backbone, or model = {' or '.join(FIXED_FEATURES)}"
"""How features stay as they are."""


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
    if about.norm == "group":
        plain = ModelSettings()
        has_effect = uses_batch_norm(model, data.shape, data.num_classes, plain)
        if not has_effect:
            rule = f"has no effect: {model} has no batch norm"
            raise SettingError("norm", about.norm, rule, remedy=with_batch_norm(data))


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
        if requirements.batch_norm and not normalizes:
            rule = f"has no batch norm, which {general.method} keeps local ({name})"
            remedy = with_batch_norm(data)
            if about.norm == "group":
                rule = f"has group norm in the place of batch norm, which {general.method} keeps local ({name})"
                remedy = "leave out norm = group"
            raise SettingError("model", model, rule, remedy=remedy)
        rule = f"has no layer that {general.method} would share: none but the head trains ({name})"
        require(not (fixed and requirements.own_head), "model", model, rule)
        rule = f"changes images ({name}), and the inputs are {not_images}"
        general.require(not (requirements.images and not_images), "method", rule)


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
        summed = not (upload.question and upload.by_client)
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


@lru_cache
def uses_batch_norm(model: str, shape: tuple[int, ...], classes: int, about: ModelSettings) -> bool:
    """Return whether the model has batch norm. Raises SettingError for inputs that it cannot take."""
    return has_batch_norm(sized_model(model, shape, classes, about))


def with_batch_norm(data: DataSettings) -> str:
    """Return the sentence that names the built-in models that have batch norm and take these data."""
    names = []
    for name in MODELS:
        try:
            has_it = uses_batch_norm(name, data.shape, data.num_classes, ModelSettings())
        except SettingError:  # it takes no inputs of this shape
            continue
        if has_it:
            names.append(name)
    return f"of the built-in models {', '.join(names)} have it"


def absolute(folder: str) -> str:
    """Return the folder as an absolute path, because clients may run elsewhere; empty stays empty."""
    return str(Path(folder).expanduser().resolve()) if folder else ""
