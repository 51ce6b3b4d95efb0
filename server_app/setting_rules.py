"""Rules between settings of different groups: what contradicts itself, and what would have no effect.

A rule of one setting, or of one group, stands in the group's class. `check` asks the rules here, one after the
other: the first that is broken is the one that the user reads.
"""

from client_app.client import Variant, affects_training, overrides
from client_app.models import (
    FIXED_FEATURES,
    MODELS,
    PLAIN,
    RANDOM_CONV,
    is_backbone,
    is_own_model,
)
from client_app.models import check as check_model_settings
from client_app.models.backbone import check_weights, sha256_of
from client_app.variants import VARIANTS
from data import SettingError
from data.agreement import Agreement
from server_app.composition import closed_form_methods
from server_app.methods import METHODS
from server_app.plugins import sources_of
from server_app.run_settings import RunSettings, takes_batch_norm
from strategies import SERVER_METHODS
from strategies.core.server import ServerMethod, needs_holdout
from strategies.creff import CReFF

FIX_FEATURES = (
    f"freeze = all beside a backbone, or model = {' or '.join(FIXED_FEATURES)}, with hidden = 0"
)
"""How features stay as they are."""
BESIDE_SITES = "does not go with dataset = sites:FILE"


def check(run: RunSettings) -> None:
    """Raise SettingError for the first rule that the settings of a run break."""
    check_between_sites(run)
    check_rounds(run)
    check_positive_class(run)
    check_finetuning(run)
    check_model(run)
    check_needs(run)
    check_holdout(run)


def check_between_sites(run: RunSettings) -> None:
    """Raise SettingError for what does not go with sites, of whose samples and modules the server knows nothing."""
    agreement = run.agreement
    if agreement is None:
        return
    check_agreed_modules(run, agreement)
    check_agreed_weights(run, agreement)
    if run.general.participation != 1:
        rule = f"{BESIDE_SITES}: every site that is there takes part"
        raise run.error("participation", rule)
    if run.model.components:
        rule = f"{BESIDE_SITES}: nobody has all sites' features to find them"
        raise run.error("components", rule)
    for variant in run.variants:
        if agreement.masked and variant.upload.is_answer and variant.upload.by_client:
            rule = "needs each site's own answer, and federation.toml says sums = masked"
            raise run.error("method", f"{rule}: {variant.name}")
    for part in run.serving:
        if part.needs_holdout:
            rule = f"{BESIDE_SITES}: {part.name} needs images of the server's own, and it has none"
            raise run.error("method", rule)


def check_agreed_modules(run: RunSettings, agreement: Agreement) -> None:
    """Raise SettingError for a module, or a backbone, other than the one that all sites agree to."""
    model = run.general.model
    agreed = []
    if agreement.backbone:
        agreed.append(f"the backbone {agreement.backbone}")
    if agreement.module:
        agreed.append(f"the module {agreement.module}")
    no_module = f"{BESIDE_SITES}: no site imports a module that a message names"
    if agreed:
        no_module += f", and federation.toml agrees on {' and '.join(agreed)}"
    module, colon, _ = model.partition(":")
    is_agreed = module == agreement.module if is_own_model(model) else model == agreement.backbone
    if colon and not is_agreed:
        raise run.error("model", no_module)
    for name in sources_of(run.parts.names):
        if {part.__module__ for part in METHODS[name].parts} != {agreement.module}:
            raise run.error("method", no_module)


def check_agreed_weights(run: RunSettings, agreement: Agreement) -> None:
    """Raise SettingError for a file of weights other than the one that all sites agree to."""
    if not run.model.weights:
        return
    if not agreement.backbone:
        raise run.error("weights", f"{BESIDE_SITES}: no site reads a file that a message names")
    if run.general.model != agreement.backbone:
        rule = f"{BESIDE_SITES}: federation.toml agrees on weights of {agreement.backbone}"
        raise run.error("weights", rule)
    here = sha256_of(run.model.weights)
    if here != agreement.weights:
        rule = f"has sha256 {here}, and federation.toml agrees on {agreement.weights}"
        raise run.error("weights", rule)


def check_rounds(run: RunSettings) -> None:
    """Raise SettingError for rounds = 0 where anything but heads in closed form is made."""
    if run.general.rounds:
        return
    rule = f"is for heads in closed form alone ({', '.join(closed_form_methods())})"
    training = [name for name in run.parts.names if needs_rounds(name)]
    if training:
        raise run.error("rounds", f"{rule}, and {' and '.join(training)} trains")
    if run.data.augmentation != "none":
        rule = "has no effect with rounds = 0: heads in closed form are made of images as they are"
        raise run.error("augmentation", rule)


def needs_rounds(name: str) -> bool:
    """Return whether a method is more than a head in closed form."""
    method = METHODS[name]
    trains = any(affects_training(VARIANTS[variant]) for variant in method.variants)
    of_rounds = any("fixed-features" not in SERVER_METHODS[part].needs for part in method.serving)
    return trains or of_rounds or not method.deploy


def check_positive_class(run: RunSettings) -> None:
    """Raise SettingError for a positive class that the data do not have."""
    stated = run.general.positive_class
    if not stated:
        return
    names = run.data.class_names
    if len(names) != 2:
        rule = f"has no effect: {run.data.dataset} has {len(names)} classes, and numbers of two have a positive one"
        raise run.error("positive-class", rule)
    if stated not in names:
        raise run.error("positive-class", f"must be one of {', '.join(names)}")


def check_finetuning(run: RunSettings) -> None:
    """Raise SettingError for fine-tuning that has nothing to draw with, to begin with, or to step with."""
    training = run.training
    draws = any(overrides(variant, "sample_weights") for variant in run.variants)
    if training.finetune_sampling == "method" and not draws:
        raise run.error("finetune-sampling", "needs a method that draws samples, as iwds")
    if training.finetune_epochs and not run.general.rounds:
        rule = "has no model to begin with: nobody trains with rounds = 0"
        raise run.error("finetune-epochs", rule)
    if training.finetune_epochs and not training.rate(run.general.rounds):
        rule = "has no effect: the learning rate of the last round is 0"
        raise run.error("finetune-epochs", rule, "a larger schedule-rounds leaves one")


def check_model(run: RunSettings) -> None:
    """Raise SettingError for settings of the model that do not go with it, with its weights, or with the data."""
    model, data = run.general.model, run.data
    check_model_settings(model, data.shape, run.model)
    if len(data.shape) != 3 and (is_backbone(model) or model == RANDOM_CONV):
        # Vectors can be the features of a network; data never are.
        rule = f"takes images, and the data are vectors of {data.input_shape}"
        raise run.error("model", rule, "model = linear takes these")
    if run.model.weights:
        check_weights(model, run.model.weights)
    if run.keeps_features and data.augmentation != "none":
        setting = "freeze = all" if run.model.freeze == "all" else "components"
        rule = f"has no effect on features that are kept ({setting}): an image's are computed once"
        raise run.error("augmentation", rule)
    if run.model.norm == "group" and not takes_batch_norm(model, data, PLAIN):
        rule = f"has no effect: {model} has no batch norm"
        raise run.error("norm", rule, with_batch_norm(run))
    if run.model.initialization != "torch" and run.has_fixed_features:
        rule = f"has no effect: {model} has no layer before the head whose weights are drawn"
        raise run.error("initialization", rule)
    if run.training.batch_size == 1 and run.has_batch_norm:
        rule = (
            f"must be at least 2, because {model} has batch norm, which cannot train on one sample"
        )
        raise run.error("batch-size", rule)


def check_needs(run: RunSettings) -> None:
    """Raise SettingError for a part of the method whose needs the model, the data or the training do not meet."""
    method = run.general.method
    inputs = "" if len(run.data.shape) == 3 else f"vectors of {run.data.input_shape}"
    if run.keeps_features:
        inputs = "kept features"
    parts: list[Variant | ServerMethod] = [*run.variants, *run.serving]
    for part in parts:
        name = part.name
        if "sgd" in part.needs and run.training.optimizer != "sgd":
            rule = f"does not go with {name}, whose equations assume SGD"
            raise run.error("optimizer", rule, "use optimizer = sgd")
        if "fixed-features" in part.needs and not run.has_fixed_features:
            rule = f"{name} needs features that stay as they are: {FIX_FEATURES}"
            raise run.error("method", rule)
        if "batch-norm" in part.needs and not run.has_batch_norm:
            rule = f"has no batch norm, which {method} keeps local ({name})"
            remedy = with_batch_norm(run) if run.model.norm == "batch" else "leave out norm = group"
            raise run.error("model", rule, remedy)
        if "own-head" in part.needs and run.has_fixed_features:
            rule = f"has no layer that {method} would share: none but the head trains ({name})"
            raise run.error("model", rule)
        if "trained-features" in part.needs and run.has_fixed_features:
            rule = f"has features that stay as they are, on which {name} changes nothing"
            raise run.error("model", rule)
        if "images" in part.needs and inputs:
            raise run.error("method", f"changes images ({name}), and the inputs are {inputs}")


def check_holdout(run: RunSettings) -> None:
    """Raise SettingError for a method that lacks the server's own samples, or a whole model to put them through."""
    for server_method in run.serving:
        if server_method.needs_holdout and not run.data.holdout_per_class:
            raise needs_holdout(server_method.name)
        if not (isinstance(server_method, CReFF) and server_method.compare_features):
            continue
        for variant in run.variants:
            if overrides(variant, "private_names"):
                rule = f"compares features of one model, and {variant.name} keeps a part on each client"
                raise run.error("creff.compare-features", rule)


def with_batch_norm(run: RunSettings) -> str:
    """Return the sentence that names the built-in models that have batch norm and take these data."""
    names = []
    for name in MODELS:
        try:
            has_it = takes_batch_norm(name, run.data, PLAIN)
        except SettingError:  # it takes no inputs of this shape
            continue
        if has_it:
            names.append(name)
    return f"of the built-in models {', '.join(names)} have it"
