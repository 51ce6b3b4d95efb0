"""What each site of a simulated federation gains by joining, and what it adds for the others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
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
KEPT = ("model", "seed", "device")
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
    head: str, of_run: Mapping[str, Scalar], stated: Mapping[str, Scalar]
) -> RunSettings:
    """Return the settings of a run without rounds that asks for `head`'s statistics.

    Args:
        head: one of HEADS.
        of_run: settings of a finished run, of which those that concern data and model are kept.
        stated: settings that replace these; any other than of data, model and head is refused.

    Raises:
        SettingError: a setting that is not for this, features that are not fixed, or data between sites.
    """
    groups: tuple[type[Settings], ...] = (DataSettings, ModelSettings)
    keys = {group.key(field.name) for group in groups for field in fields(group)}
    keys |= {GeneralSettings.key(field) for field in KEPT}
    rule = f"has no effect on the worth of sites: state those of data, model and {head}"
    for key, value in stated.items():
        require(key in keys or key.partition(".")[0] in (head, STATISTICS[head]), key, value, rule)
    kept = {key: value for key, value in of_run.items() if key in keys}
    settings = parse({**kept, **stated, "method": head, "rounds": 0})
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
        federation, (variant,) = self.runtime.federation, settings.variants
        assert isinstance(federation, Federation), "these are no sites with data of their own"
        assert isinstance(variant, GridStatistics), "the heads here ask for statistics"
        self.federation: Federation = federation
        self.variant: GridStatistics = variant
        (method,) = settings.deploys
        assert isinstance(method, ClosedFormHead), "the heads here are in closed form"
        self.method = method

        self.variant.check_size(int(self.federation.counts_KC.sum()))
        state = self.runtime.model.state_dict()
        clients = (
            self.runtime.client(number, 0, state, {}, {})
            for number in range(self.federation.clients)
        )
        answers = [self.variant.answer(client, self.variant.name) for client in clients]
        names = answers[0].keys()
        self.variant.check_sum({name: sum_of([a[name] for a in answers]) for name in names})
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
            shares_T, self.weights_T, self.labels_T, self.subjects_T, error / self.classes
        )


def judges_of(samples: Samples, classes: int, target: str) -> Judges:
    """Return how test samples count: each alike, or for balanced accuracy each class of theirs alike."""
    labels_T = samples.labels_N.cpu().numpy()
    weights_T = np.ones(len(labels_T))
    if target == "balanced-accuracy":
        weights_T = 1 / np.bincount(labels_T)[labels_T]
    groups_T = samples.groups_N if samples.groups_N is not None else samples.subjects_N
    subjects_T = np.arange(len(labels_T))
    if groups_T is not None:
        subjects_T = np.unique(groups_T.cpu().numpy(), return_inverse=True)[1]
    return Judges(labels_T, weights_T / weights_T.sum(), subjects_T, classes)


def worth_of(
    settings: RunSettings, target: str, all_features: bool = False, pairs: int = 100
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
    sites = SimulatedSites(settings)
    number = len(sites.statistics)
    require(number > 1, "clients", number, "must be at least 2: a single site joins nobody")
    rule = f"must be at most {MOST_EXACT} with --exact, which looks at all coalitions"
    require(not all_features or number <= MOST_EXACT, "clients", number, rule)
    whole = sites.coalitions().with_rho_of_all()
    test = judges_of(sites.federation.test(None), whole.classes, target)

    seen = whole if all_features else whole.compressed(COMPONENTS)
    everybody = frozenset(range(number))
    all_T, *without_KT = seen.outcomes([everybody, *(everybody - {site} for site in range(number))])
    orders = 0 if number <= MOST_EXACT else 2 * pairs
    if orders:
        draws = np.random.default_rng(settings.general.seed)
        parts = sampled(number, seen.outcomes, pairs, test.weights_T, draws)
    else:
        parts = exact(number, seen.outcomes)

    found = []
    for site, name in enumerate(sites.federation.client_names):
        alone, together, weighted, gain = joining(sites, whole, site, target)
        shapley = test.estimate(parts.shares_KT[site], float(parts.errors_K[site]))
        last = test.estimate(all_T - without_KT[site])
        samples = sites.statistics[site].samples
        found.append(SiteWorth(name, samples, alone, together, weighted, gain, shapley, last))
    return Worth(
        sites.method.name,
        target,
        seen.features_TD.shape[1],
        whole.features_TD.shape[1],
        orders,
        test.estimate(all_T),
        1 / whole.classes,
        tuple(found),
    )


def joining(
    sites: SimulatedSites, whole: Coalitions, site: int, target: str
) -> tuple[Estimate, Estimate, Estimate, Estimate]:
    """Return a site's accuracy alone, together, together with its own samples weighted up, and what joining gains."""
    samples = sites.test_of(site)
    judges = judges_of(samples, whole.classes, target)
    own = sites.statistics[site]
    own_test = Coalitions(
        whole.method, whole.sites, whole.step, sites.features_of(samples), judges.labels_T
    )
    pooled = whole.everybody
    heads = [whole.head(part) for part in (own, pooled, weighted_up(own, pooled))]
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
    times = max(1, round(others.samples / own.samples)) if own.samples else 1
    return others + times * own
