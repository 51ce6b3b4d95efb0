"""Heads in closed form on pretrained features: orders of a long tail, Shapley values by brute force, and their time.

    python -m benchmarks.closed_form orders --data-root FOLDER --weights FILE
    python -m benchmarks.closed_form worth --data-root FOLDER --weights FILE

    orders   CIFAR-10, largest class 1,000, imbalance 100, six orders of the classes, drawn anew each: balanced accuracy
             of each head, and the recall of the two rarest classes
    worth    six sites of 5,000 CIFAR-10 images (LDA 0.1), then six of digits: each coalition's samples are put together
             and their statistics taken anew, and the Shapley value is the mean gain over all 720 orders of joining in
             float64; the largest difference from `fedskew worth`. Then the seconds of twelve sites, quick and exact

Features are computed before any clock starts, and kept (the setting cache). Prints a JSON line per result.
"""

import argparse
import itertools
import json
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from numpy.typing import NDArray

import fedskew
from client_app.features import with_features
from client_app.models import ModelSettings
from data import Federation, federate
from fedskew.worth.coalitions import Coalitions, from_answer
from fedskew.worth.federation import SimulatedSites, judges_of, settings_of, worth_of
from server_app.settings import parse

MODEL, SIDE = "efficientnet-lite0", 96
HEADS = ("fed-lda", "fed-lda-pooled", "fed3r", "fedncm")
ORDERS, LARGEST, FACTOR = 6, 1000, 100
SEEDS = 3
"""Of `frozen-balanced`, whose images the orders are drawn from."""
RAREST = 2
"""Classes whose mean recall is stated beside the balanced accuracy."""
SITES, MOST_SITES = 6, 12
DIGITS: Mapping[str, Any] = {"dataset": "digits", "model": "linear", "alpha": 0.1}


def report(**numbers: object) -> None:
    """Print a result."""
    print(json.dumps(numbers), flush=True)


# ---- orders of the classes -------------------------------------------------------------------------------------------


def all_features(options: argparse.Namespace) -> dict[str, NDArray[Any]]:
    """Return features and labels by the names that an npz file has for them.

    The training images are those that `frozen-balanced` draws with its three seeds, whose features it has kept: about
    1,350 a class. All test images are there.
    """
    weights = ModelSettings(weights=options.weights, freeze="all", image_side=SIDE)
    stated = {"method": "fedavg", "dataset": "cifar10", "data-root": options.data_root}
    rows: dict[int, NDArray[Any]] = {}
    for seed in range(SEEDS):
        data = parse({**stated, "largest-class": 500, "alpha": 0.1, "clients": 10}).data
        federation = with_features(federate(data, seed), MODEL, weights, "", "cpu")
        dataset = federation.dataset
        drawn = np.unique(np.concatenate(federation.train_indices))
        features = dataset.train_inputs[drawn]  # type: ignore[index]
        rows.update(zip(drawn.tolist(), features, strict=True))
    indices = np.array(sorted(rows))
    test = np.arange(len(dataset.test_labels))
    return {
        "train_images": np.stack([rows[index] for index in indices.tolist()]),
        "train_labels": np.asarray(dataset.train_labels)[indices],
        "test_images": dataset.test_inputs[test],  # type: ignore[index]
        "test_labels": np.asarray(dataset.test_labels)[test],
    }


def in_order(
    arrays: Mapping[str, NDArray[Any]], order: NDArray[np.int64], draws: np.random.Generator
) -> dict[str, NDArray[Any]]:
    """Return the data set whose class 0, the largest of a tail, is `order[0]`, and so on; LARGEST images a class."""
    place_of = np.argsort(order)
    train_labels = place_of[arrays["train_labels"]]
    chosen = []
    for label in range(len(order)):
        of_class = np.flatnonzero(train_labels == label)
        chosen.append(draws.choice(of_class, LARGEST, replace=False))
    rows = np.sort(np.concatenate(chosen))
    return {
        "train_images": arrays["train_images"][rows],
        "train_labels": train_labels[rows],
        "test_images": arrays["test_images"],
        "test_labels": place_of[arrays["test_labels"]],
    }


def orders(options: argparse.Namespace) -> None:
    """Print each head's balanced accuracy on a long tail, for several orders of the classes."""
    arrays = all_features(options)
    classes = int(arrays["train_labels"].max()) + 1
    for number in range(ORDERS):
        draws = np.random.default_rng(number)
        order = draws.permutation(classes)
        with tempfile.TemporaryDirectory(prefix="fedskew-orders-") as folder:
            file = Path(folder) / "features.npz"
            np.savez(file, **in_order(arrays, order, draws))  # type: ignore[arg-type]
            settings = {
                "dataset": f"npz:{file}",
                "cache": folder,
                "results": folder,
                "classes": str(classes),
                "input-shape": str(arrays["train_images"].shape[1]),
                "mean": "0",
                "std": "1",
                "model": "linear",
                "rounds": 0,
                "method": "+".join(HEADS),
                "largest-class": LARGEST,
                "imbalance-factor": FACTOR,
                "alpha": 0.1,
                "clients": 10,
                "seed": number,
            }
            result = fedskew.run(settings)
        for head in HEADS:
            numbers = result.models[head]["last"]
            recall_C = numbers["recall"]
            report(
                order=[int(label) for label in order],
                head=head,
                balanced=round(100 * numbers["balanced-accuracy"], 2),
                rarest=round(100 * float(np.mean(recall_C[-RAREST:])), 1),
            )


# ---- the worth of sites ----------------------------------------------------------------------------------------------


def pooled_hits(sites: SimulatedSites, coalitions: Coalitions) -> dict[frozenset[int], Any]:
    """Return the hits of every coalition's head, from statistics of its samples as one client's."""
    state = sites.runtime.model.state_dict()
    number = len(sites.statistics)
    clients = [sites.runtime.client(site, 0, state, {}, {}) for site in range(number)]
    found: dict[frozenset[int], Any] = {}
    for size in range(number + 1):
        for members in itertools.combinations(range(number), size):
            if not members:
                found[frozenset()] = coalitions.hits([None])[0]
                continue
            parts = [clients[member].samples for member in members]
            samples = replace(
                parts[0],
                inputs_N=torch.cat([torch.as_tensor(part.inputs_N) for part in parts]),
                labels_N=torch.cat([part.labels_N for part in parts]),
            )
            one = replace(clients[0], samples=samples)
            statistics = from_answer(sites.variant.answer(one, sites.variant.name))
            found[frozenset(members)] = coalitions.hits([coalitions.head(statistics)])[0]
    return found


def by_brute_force(stated: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return each site's Shapley value, a share of balanced accuracy: its mean gain over all orders of joining."""
    sites = SimulatedSites(settings_of("fed3r", {}, stated))
    assert isinstance(sites.federation, Federation)
    coalitions = sites.coalitions().with_rho_of_all()
    test = judges_of(sites.federation.test(None), coalitions.classes, "balanced-accuracy")
    values = {}
    for coalition, hits_T in pooled_hits(sites, coalitions).items():
        values[coalition] = float(hits_T @ test.weights_T / coalitions.classes)
    number = len(sites.statistics)
    gains_K = np.zeros(number)
    every_order = list(itertools.permutations(range(number)))
    for order in every_order:
        for place, site in enumerate(order):
            before = frozenset(order[:place])
            gains_K[site] += values[before | {site}] - values[before]
    return gains_K / len(every_order)


def worth(options: argparse.Namespace) -> None:
    """Print how far `fedskew worth` is from brute force, and how long it takes."""
    cifar10 = {
        "dataset": "cifar10",
        "data-root": options.data_root,
        "model": MODEL,
        "weights": options.weights,
        "freeze": "all",
        "image-side": SIDE,
        "largest-class": 500,
        "alpha": 0.1,
    }
    for name, stated in (("cifar10", cifar10), ("digits", dict(DIGITS))):
        of_sites = {**stated, "clients": SITES}
        began = time.monotonic()
        expected_K = by_brute_force(of_sites)
        slow = time.monotonic() - began
        began = time.monotonic()
        found = worth_of(settings_of("fed3r", {}, of_sites), "balanced-accuracy", all_features=True)
        seconds = time.monotonic() - began
        phi_K = np.array([site.shapley.value for site in found.sites])
        report(
            data=name,
            sites=SITES,
            shapley=[round(100 * float(value), 2) for value in phi_K],
            difference=float(np.abs(phi_K - expected_K).max()),
            sum_difference=abs(float(phi_K.sum()) - (found.everybody.value - found.guess)),
            seconds=round(seconds, 1),
            brute_force_seconds=round(slow, 1),
        )
    found_by: dict[bool, NDArray[np.float64]] = {}
    for exact in (False, True):
        settings = settings_of("fed3r", {}, {**cifar10, "clients": MOST_SITES})
        began = time.monotonic()
        found = worth_of(settings, "balanced-accuracy", all_features=exact)
        seconds = time.monotonic() - began
        found_by[exact] = np.array([site.shapley.value for site in found.sites])
        report(sites=MOST_SITES, features=found.features, seconds=round(seconds, 1))
    off = 100 * float(np.abs(found_by[False] - found_by[True]).max())
    report(sites=MOST_SITES, points_between_quick_and_exact=round(off, 2))


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("orders", "worth"))
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--weights", required=True, help="EfficientNet-Lite0's")
    options = parser.parse_args()
    {"orders": orders, "worth": worth}[options.what](options)


if __name__ == "__main__":
    main()
