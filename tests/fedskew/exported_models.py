"""Small runs and their exports for the tests: a CReFF run on digits, a FedBN run on two tiny domains."""

from pathlib import Path

import numpy as np
from in_process import SERVER_SMALL, SMALL

import fedskew
from data import federate
from fedskew.export.from_run import TrainedRun, export
from server_app.run_folder import RunFolder
from server_app.settings import parse

CREFF = {**SMALL, **SERVER_SMALL["creff"], "method": "creff", "model": "small-cnn"}
CREFF |= {"clients": 3, "test-images": 0}
"""Of 200 digits, tested on all."""
FEDBN = {"method": "fedbn", "classes": "4", "input-shape": "1x8x8", "model": "mlp-bn"}
DOMAINS = ("bright", "dark")


def trained(settings, results):
    """Run settings in this process and return the run's folder."""
    result = fedskew.run({"device": "cpu", **settings, "results": str(results)})
    return RunFolder(result.folder)


def trained_on_domains(root, rounds=2):
    """Run FedBN on the domains: four classes that differ in brightness, 40 images each."""
    for seed, (name, contrast) in enumerate(zip(DOMAINS, (1.0, 0.3), strict=True)):
        draw, labels = np.random.default_rng(seed), np.arange(80) % 4
        images = contrast * (draw.integers(0, 120, (80, 8, 8)) + 40 * labels[:, None, None])
        arrays = {}
        for key, part in (("train", slice(0, 40)), ("test", slice(40, 80))):
            arrays[f"{key}_images"] = images[part].astype(np.uint8)
            arrays[f"{key}_labels"] = labels[part]
        np.savez(root / f"{name}.npz", **arrays)
    names = ",".join(f"npz:{root / name}.npz" for name in DOMAINS)
    return trained({**FEDBN, "dataset": f"domains:{names}", "rounds": rounds}, root / "results")


def exported(folder, output, model="", **more) -> Path:
    """Export a run and return the model's folder."""
    export(TrainedRun(folder, model), output, **more)
    return output


def write_test_set(settings, file) -> Path:
    """Write the global test set of a run with these settings as images and labels."""
    run = parse(settings)
    federation = federate(run.data, run.general.seed)
    tested = federation.dataset.test
    images, labels = (part[federation.global_test] for part in (tested.inputs, tested.labels))
    np.savez(file, images=np.asarray(images)[:, 0], labels=labels)
    return file


def write_inputs(root, domain, labeled=True) -> Path:
    """Write a domain's test set as images and, perhaps, labels."""
    file = root / f"inputs-{domain}.npz"
    with np.load(root / f"{domain}.npz") as arrays:
        labels = {"labels": arrays["test_labels"]} if labeled else {}
        np.savez(file, images=arrays["test_images"], **labels)
    return file
