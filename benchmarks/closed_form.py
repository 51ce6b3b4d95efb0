"""Heads in closed form on pretrained features: orders of a long tail.

    python -m benchmarks.closed_form orders --data-root FOLDER --weights FILE

    orders   CIFAR-10, largest class 1,000, imbalance 100, six orders of the classes, drawn anew each: balanced accuracy
             of each head, and the recall of the two rarest classes

Features are computed before any clock starts, and kept (the setting cache). Prints a JSON line per result.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray

import fedskew
from client_app.features import with_features
from client_app.models import ModelSettings
from data import federate
from server_app.settings import parse

MODEL, SIDE = "efficientnet-lite0", 96
HEADS = ("fed-lda", "fed-lda-pooled", "fed3r", "fedncm")
ORDERS, LARGEST, FACTOR = 6, 1000, 100
SEEDS = 3
"""Of `frozen-balanced`, whose images the orders are drawn from."""
RAREST = 2
"""Classes whose mean recall is stated beside the balanced accuracy."""


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
        features = dataset.train.inputs[drawn]  # type: ignore[index]
        rows.update(zip(drawn.tolist(), features, strict=True))
    indices = np.array(sorted(rows))
    test = np.arange(len(dataset.test.labels))
    return {
        "train_images": np.stack([rows[index] for index in indices.tolist()]),
        "train_labels": np.asarray(dataset.train.labels)[indices],
        "test_images": dataset.test.inputs[test],  # type: ignore[index]
        "test_labels": np.asarray(dataset.test.labels)[test],
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


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("orders",))
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--weights", required=True, help="EfficientNet-Lite0's")
    options = parser.parse_args()
    orders(options)


if __name__ == "__main__":
    main()
