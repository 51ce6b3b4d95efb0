"""What each site of a simulated federation gains by joining, and what it adds for the others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from client_app.models import ModelSettings
from client_app.models.classifier import in_batches
from client_app.runtime import ClientRuntime
from client_app.variants.feature_statistics import GridStatistics
from data import DataSettings, Federation, Samples, Settings, require
from fedskew.worth.coalitions import (
    COMPONENTS,
    Coalitions,
    SiteStatistics,
    from_answer,
)
from fedskew.worth.shapley import (
    MOST_EXACT,
    Estimate,
    Floats,
    Integers,
    estimate,
    exact,
    sampled,
)
from server_app.run_settings import GeneralSettings, RunSettings, Scalar
from server_app.settings import parse
from strategies.closed_form import ClosedFormHead

STATISTICS = {
    "fed3r": "feature-statistics",
    "fed-lda-pooled": "feature-statistics",
    "fedncm": "class-means",
}
"""Heads whose sums over a coalition are the sums of its sites', each with the variant that it asks."""
TARGETS = ("balanced-accuracy", "accuracy")
GENERAL_SETTINGS = ("model", "seed", "device")
"""General settings of a run that the worth of its sites depends on, or that say where it is computed."""


@dataclass(frozen=True)
class SiteWorth:
    """One site. Accuracies are shares; all but the last two are measured on the site's own test samples."""

    name: str
    samples: int
    alone: Estimate
    """The head of its own samples alone."""
    together: Estimate
    """The head of all sites' samples."""
    weighted: Estimate
    """The head of all samples, in which its own weigh as much as all others'."""
    gain: Estimate
    """`together` less `alone`."""
    shapley: Estimate
    """Its mean contribution to the accuracy on the federation's test set, over all orders of joining."""
    last: Estimate
    """What it adds there as the last one to join; one more site like it would hardly add more."""

    def as_json(self) -> dict[str, Any]:
        """Return the site as JSON holds it."""
        estimates = ("alone", "together", "weighted", "gain", "shapley", "last")
        numbers = {key: getattr(self, key).as_json() for key in estimates}
        return {"site": self.name, "samples": self.samples, **numbers}


@dataclass(frozen=True)
class Worth:
    """The worth of all sites."""

    head: str
    target: str
    features: int
    """Numbers of a sample that the heads see."""
    all_features: int
    """Numbers of a sample that there are."""
    orders: int
    """Random orders of joining behind the Shapley values; 0 where all coalitions were looked at."""
    everybody: Estimate
    """The head of all sites on the federation's test set."""
    guess: float
    """The accuracy of a guess, from which the Shapley values count."""
    sites: tuple[SiteWorth, ...]

    def as_json(self) -> Mapping[str, Any]:
        """Return all of it as JSON holds it."""
        return {
            "head": self.head,
            "target": self.target,
            "features": self.features,
            "all-features": self.all_features,
            "orders": self.orders,
            "everybody": self.everybody.as_json(),
            "guess": self.guess,
            "sites": [site.as_json() for site in self.sites],
        }


def settings_of(
    head: str,
    of_run: Mapping[str, Scalar],
    overrides: Mapping[str, Scalar],
) -> RunSettings:
    """Return the settings of a run without rounds that asks for `head`'s statistics.

    Args:
        head: one of STATISTICS.
        of_run: settings of a finished run, of which those that concern data and model are kept.
        overrides: settings that replace these; any other than of data, model and head is refused.

    Raises:
        SettingError: a setting that has no effect here, features that are not fixed, or data between sites.
    """
    keys = {GeneralSettings.key(field) for field in GENERAL_SETTINGS}
    groups: tuple[type[Settings], ...] = (DataSettings, ModelSettings)
    for group in groups:
        keys.update(group.key(field.name) for field in fields(group))

    methods = (head, STATISTICS[head])
    rule = f"has no effect on the worth of sites: state those of data, model and {head}"
    for key, value in overrides.items():
        method = key.partition(".")[0]
        require(key in keys or method in methods, key, value, rule)

    inherited = {key: value for key, value in of_run.items() if key in keys}
    inherited.pop("augmentation", None)  # statistics are of images as they are
    settings = parse({**inherited, **overrides, "method": head, "rounds": 0})
    between = "is between sites, whose sums by coalition nobody may see: state a simulation's data"
    require(settings.agreement is None, "dataset", settings.data.dataset, between)
    return settings


class SimulatedSites:
    """The statistics and test samples of a simulation's clients, as features of one model."""

    def __init__(self, settings: RunSettings) -> None:
        """Compute the features where they are not kept yet, and every client's sums of them.

        Raises:
            SettingError: the features leave the grid, or the sums could overflow.
        """
        self.runtime = ClientRuntime(settings.run_spec())
        federation = self.runtime.federation
        (variant,) = settings.variants
        (method,) = settings.deploys
        assert isinstance(federation, Federation), "these are no sites with data of their own"
        assert isinstance(variant, GridStatistics), "the heads here ask for statistics"
        assert isinstance(method, ClosedFormHead), "the heads here are in closed form"
        self.federation: Federation = federation
        self.variant: GridStatistics = variant
        self.method = method

        samples = int(federation.counts_KC.sum())
        variant.check_size(samples)
        state = self.runtime.model.state_dict()
        answers = []
        for number in range(federation.clients):
            client = self.runtime.client(number, 0, state, {}, {})
            answers.append(variant.answer(client, variant.name))

        # Each client's sums fit their type; the sum over all clients must fit as well.
        sums = {}
        for name in answers[0]:
            sums[name] = sum_of([answer[name] for answer in answers])
        variant.check_sum(sums)
        self.statistics = [from_answer(answer) for answer in answers]

    def features_of(self, samples: Samples) -> Tensor:
        """Return (N, D) float64 features, in eval mode."""
        model = self.runtime.model.eval()
        return in_batches(model.features, samples).cpu().double()

    def coalitions(self) -> Coalitions:
        """Return the heads of coalitions, judged on the federation's test set."""
        test = self.federation.test(None, self.runtime.device)
        return Coalitions(
            self.method,
            self.statistics,
            self.variant.grid.step,
            self.features_of(test),
            test.labels_N.cpu().numpy(),
        )

    def test_of(self, client: int) -> Samples:
        """Return the samples that a client is tested on: its own, or the federation's where it has none."""
        return self.federation.test(client, self.runtime.device)


def sum_of(tensors: Sequence[Tensor]) -> Tensor:
    """Return the sum of tensors of whole numbers."""
    result: Tensor = torch.stack(list(tensors)).sum(0)
    return result


@dataclass(frozen=True)
class Judges:
    """Test samples, and how they count in an accuracy."""

    labels_T: Integers
    weights_T: Floats
    """They sum to 1."""
    subjects_T: Integers
    """Whose each sample is; its own number where nobody knows."""
    classes: int

    def estimate(self, hits_T: Integers | Floats, error: float = 0.0) -> Estimate:
        """Return the accuracy, or the difference of two, of hits in units of 1 / C."""
        shares_T = hits_T / self.classes
        return estimate(
            shares_T,
            self.weights_T,
            self.labels_T,
            self.subjects_T,
            error / self.classes,
        )


def judges_of(samples: Samples, classes: int, target: str) -> Judges:
    """Return how test samples count: each alike, or for balanced accuracy each class of theirs alike."""
    labels_T = samples.labels_N.cpu().numpy()
    weights_T = np.ones(len(labels_T))
    if target == "balanced-accuracy":
        weights_T = 1 / np.bincount(labels_T)[labels_T]
    weights_T = weights_T / weights_T.sum()

    subjects_T = np.arange(len(labels_T))
    groups_T = samples.groups_N if samples.groups_N is not None else samples.subjects_N
    if groups_T is not None:
        _, subjects_T = np.unique(groups_T.cpu().numpy(), return_inverse=True)
    return Judges(labels_T, weights_T, subjects_T, classes)


def check_sites(number: int, all_features: bool) -> None:
    """Raise SettingError for a single site, and for too many to look at all coalitions with `all_features`."""
    require(number > 1, "clients", number, "must be at least 2: a single site joins nobody")
    rule = f"must be at most {MOST_EXACT} with --exact, which looks at all coalitions"
    require(not all_features or number <= MOST_EXACT, "clients", number, rule)


def worth_of(
    settings: RunSettings,
    target: str,
    all_features: bool = False,
    pairs: int = 100,
) -> Worth:
    """Return what every site of a federation gains and adds.

    Up to MOST_EXACT sites all coalitions are looked at; beyond them sites join in random orders.

    Args:
        settings: of `settings_of`.
        target: one of TARGETS.
        all_features: whether coalitions see all features in place of COMPONENTS principal components.
        pairs: pairs of random orders, where there are too many sites for all coalitions.

    Raises:
        SettingError: the features leave the grid, there is one site alone, or too many for `all_features`.
    """
    if settings.data.clients:
        check_sites(settings.data.clients, all_features)  # before any feature is computed
    sites = SimulatedSites(settings)
    number = len(sites.statistics)
    check_sites(number, all_features)
    coalitions = sites.coalitions().with_rho_of_all()
    test = judges_of(sites.federation.test(None), coalitions.classes, target)

    # Shapley values need the heads of many coalitions, so these see fewer features.
    quick = coalitions if all_features else coalitions.compressed(COMPONENTS)
    everybody = frozenset(range(number))
    all_but_one = [everybody - {site} for site in range(number)]
    all_T, *without_KT = quick.outcomes([everybody, *all_but_one])
    if number <= MOST_EXACT:
        orders = 0
        contributions = exact(number, quick.outcomes)
    else:
        orders = 2 * pairs
        draws = np.random.default_rng(settings.general.seed)
        contributions = sampled(number, quick.outcomes, pairs, test.weights_T, draws)

    found = []
    for site, name in enumerate(sites.federation.client_names):
        alone, together, weighted, gain = joining(sites, coalitions, site, target)
        error = float(contributions.errors_K[site])
        shapley = test.estimate(contributions.shares_KT[site], error)
        last = test.estimate(all_T - without_KT[site])
        samples = sites.statistics[site].samples
        found.append(SiteWorth(name, samples, alone, together, weighted, gain, shapley, last))
    return Worth(
        head=sites.method.name,
        target=target,
        features=quick.features_TD.shape[1],
        all_features=coalitions.features_TD.shape[1],
        orders=orders,
        everybody=test.estimate(all_T),
        guess=1 / coalitions.classes,
        sites=tuple(found),
    )


def joining(
    sites: SimulatedSites,
    coalitions: Coalitions,
    site: int,
    target: str,
) -> tuple[Estimate, Estimate, Estimate, Estimate]:
    """Return a site's accuracy alone, together, together with its own samples weighted up, and what joining gains."""
    samples = sites.test_of(site)
    judges = judges_of(samples, coalitions.classes, target)
    own_test = replace(coalitions, features_TD=sites.features_of(samples), labels_T=judges.labels_T)
    own = sites.statistics[site]
    pooled = coalitions.everybody
    heads = [coalitions.head(sums) for sums in (own, pooled, weighted_up(own, pooled))]
    alone_T, together_T, weighted_T = own_test.hits(heads)
    return (
        judges.estimate(alone_T),
        judges.estimate(together_T),
        judges.estimate(weighted_T),
        judges.estimate(together_T - alone_T),
    )


def weighted_up(own: SiteStatistics, pooled: SiteStatistics) -> SiteStatistics:
    """Return the sum of all sites in which one counts a whole number of times, about as much as all others."""
    others = pooled - own
    times = 1
    if own.samples:
        times = max(1, round(others.samples / own.samples))
    return others + times * own
