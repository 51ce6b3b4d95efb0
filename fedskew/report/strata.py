"""Rows with intervals: what a run's number is made of, which are shares of right answers in groups of test examples."""

import numpy as np
from numpy.typing import NDArray

from fedskew.report.inference import Estimate, Floats, Strata, with_interval
from fedskew.report.results import RowResults, SeedResult
from server_app.evaluation import shot_groups
from server_app.record import Spread


def strata(run: SeedResult) -> Strata | None:
    """Return how a run's number comes from its test examples; None where the records do not say that.

    Where all clients are tested on one test set, recall is their mean and the examples count once. An AUROC counts as
    the share of right answers of as many examples as give it its recorded standard error.
    """
    metric, points, samples = run.metric, run.selected, run.run.samples
    if metric == "auroc":
        return auroc_strata(run)
    if not points or not samples:
        return None
    if metric.startswith("client-accuracy.") and samples["client-test"]:
        return client_strata(run)
    own_models = any("client-accuracy" in point.numbers.spreads for point in points)
    if metric == "local-accuracy.mean" and own_models:
        return None  # recalls are means over the clients' models, which each client weighs by its own classes
    tested_C = np.array(samples.get("tested", samples["test"]))
    weights_C = class_weights(run, tested_C)
    if weights_C is None:
        return None
    recalls = [np.nan_to_num(point.numbers.recall) for point in points]
    independent_C = np.array(samples.get("independent", tested_C))
    return Strata(np.mean(recalls, axis=0), independent_C, weights_C)


def estimated(row: RowResults) -> Estimate | None:
    """Return a row's number over the seeds with its interval; None where no seed has it."""
    terms = [(strata(run),) for run in row.runs if run.number is not None]
    return with_interval(row.numbers, terms, (row.row, row.column)) if terms else None


def compare_rows(row: RowResults, than: RowResults) -> Estimate | None:
    """Return a row's number minus another row's, over the seeds that both have; None where there is no such seed."""
    by_seed: dict[int, float] = {}
    pairs = []
    for ours in row.runs:
        theirs = than.of_seed(ours.seed)
        if theirs is None or ours.number is None or theirs.number is None:
            continue
        by_seed[ours.seed] = ours.number - theirs.number
        pairs.append((strata(ours), strata(theirs)))
    return with_interval(by_seed, pairs, (row.row, than.row)) if pairs else None


def auroc_strata(run: SeedResult) -> Strata | None:
    """Return the AUROC as a share of so many right answers that it has its recorded standard error."""
    area = run.mean("auroc")
    error = run.mean("auroc-error")
    if area is None or not error:
        return None
    examples = round(area * (1 - area) / error**2)
    return Strata(np.array([area]), np.array([examples]), np.ones(1))


def client_strata(run: SeedResult) -> Strata | None:
    """Return a number over the clients' own test sets as a function of each client's accuracy."""
    name, _, part = run.metric.partition(".")
    samples = run.run.samples
    sizes_K = np.array(samples.get("client-independent") or samples["client-test"])
    clients = len(sizes_K)
    accuracies = [point.numbers.spreads.get(name, Spread()).values for point in run.selected]
    if any(len(values) != clients or np.isnan(values).any() for values in accuracies):
        return None
    rates_K = np.mean(accuracies, axis=0)
    lowest = {"mean": clients, "worst": 1, "worst-decile": max(1, clients // 10)}
    if part in lowest:
        counted_K = np.arange(clients) < lowest[part]
        return Strata(rates_K, sizes_K, counted_K / lowest[part], ascending=True)
    of_site = np.eye(clients)[run.site(run.metric)]  # the metric names one client
    return Strata(rates_K, sizes_K, of_site)


def class_weights(run: SeedResult, sizes_C: NDArray[np.int64]) -> Floats | None:
    """Return the weight of each class's recall in a number; None where it is not a weighted sum of them."""
    tested_C = sizes_C > 0
    train_KC = np.array(run.run.samples["train"])
    weights_C = tested_C * 1.0
    if run.metric in ("accuracy", "client-accuracy.mean"):  # every client's test set is the same
        weights_C *= sizes_C
    elif run.metric == "local-accuracy.mean":
        tested_KC = train_KC * tested_C
        tested_KC = tested_KC[tested_KC.sum(1) > 0]
        shares_KC = tested_KC / tested_KC.sum(1, keepdims=True)
        return np.asarray(shares_KC.mean(0))
    elif run.metric != "balanced-accuracy":
        groups = shot_groups(train_KC.sum(0).tolist(), run.run.settings.data.long_tailed)
        group = groups.get(run.metric.removesuffix("-recall"))
        if group is None:
            return None
        weights_C *= np.isin(np.arange(len(sizes_C)), group)
    return np.asarray(weights_C / weights_C.sum())
