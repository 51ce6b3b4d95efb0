"""From a run's settings and data to the model and the strategy that trains it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from client_app.features import with_features
from client_app.models import Classifier, build
from client_app.process import choose_device
from client_app.runtime import initial_seed
from client_app.vectorized import obstacle
from data import Federation, federate
from server_app.run_settings import RunSettings
from strategies.core.masked_sums import MaskedSums
from strategies.core.node_assignment import SiteAssigner
from strategies.core.rounds import Rounds

SUMS_FOLDER = "sums"
"""In the results folder: the sums of all sites, which every run of a federation has in common."""


def federation_of(settings: RunSettings) -> Federation:
    """Return the run's data split between its clients, as its model takes them.

    A model whose backbone is frozen takes that backbone's features in place of images.
    """
    federation = federate(settings.data, settings.general.seed)
    if settings.agreement is None:
        return with_features(
            federation,
            settings.general.model,
            settings.hashed_model,
            settings.data.cache,
            choose_device(settings.server_device),
            settings.variants,
        )
    if settings.model.freeze != "all":
        return federation
    # The server has no sample: of the features it needs their number alone.
    features = replace(federation.dataset, shape=settings.input_shape, mean=(0.0,), std=(1.0,))
    return replace(federation, dataset=features, augmentation="none")


def model_of(settings: RunSettings, federation: Federation) -> Classifier:
    """Return the run's model with its first weights."""
    dataset = federation.dataset
    return build(
        settings.general.model,
        dataset.shape,
        dataset.num_classes,
        initial_seed(settings.general.seed),
        settings.hashed_model,
    )


def strategy_of(
    settings: RunSettings,
    federation: Federation,
    model: Classifier,
    device: str,
    waits: Callable[[str], None] = lambda line: None,
) -> Rounds:
    """Return the strategy before round 1; `model` is its scratchpad, on whose `device` the server computes.

    Between sites, `waits` is called with a line that names the sites that a round waits for, and with "" afterwards.
    """
    agreement = settings.agreement
    examples = {}
    if agreement is None:  # sites report their own numbers of samples
        for client, indices in enumerate(federation.train_indices):
            examples[client] = len(indices)
    return Rounds(
        model,
        settings.run_spec(),
        clients=settings.data.clients,
        participation=settings.general.participation,
        combine=settings.combine,
        deploys=settings.deploys,
        optimizer=settings.general.optimizer,
        exchange=settings.exchange_in_force,
        examples=examples,
        holdout=federation.holdout(device),
        device=device,
        assigner=None if agreement is None else SiteAssigner(agreement, waits),
        sites=() if agreement is None else agreement.sites,
        masked_sums=masked_sums_of(settings),
        is_evaluated=settings.general.is_evaluated,
    )


def masked_sums_of(settings: RunSettings) -> MaskedSums | None:
    """Return the masked sums of a run's federation; None in a simulation, and where sums are plain."""
    agreement = settings.agreement
    if agreement is None or not agreement.masked:
        return None
    return MaskedSums(agreement, Path(settings.general.results) / SUMS_FOLDER)


COARSE = "; bfloat16 rounds sums of another order: weights differ by 1e-3 to 1e-1 from those of clients one by one"
"""What the line about clients-per-pass, and the summary, add for bfloat16."""


def how_vectorized(settings: RunSettings, model: Classifier, federation: Federation) -> str:
    """Return how clients train with clients-per-pass, for the log; empty where it is not set.

    `federation` has the data as the model takes them: images, or the features that are kept in their place.
    """
    if settings.training.clients_per_pass == 1:
        return ""
    if settings.agreement is not None:
        return "one by one: a site is one client"
    reason = obstacle(model, federation.dataset.shape, settings.variants)
    if reason:
        return f"one by one: {reason}"
    if settings.training.precision == "bfloat16":
        return f"in one pass{COARSE}"
    return "in one pass"
