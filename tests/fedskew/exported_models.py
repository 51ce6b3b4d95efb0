"""Small runs and their exports for the tests: a CReFF run on digits, a FedBN run on two tiny domains."""

from pathlib import Path
from typing import Any

import numpy as np
from in_process import SERVER_SMALL

from data import federate
from fedskew.engines.local import LocalGrid
from fedskew.export.from_run import TrainedRun, export
from server_app.app import run
from server_app.run_folder import RunFolder
from server_app.run_settings import RunSettings
from server_app.settings import parse

DIGITS: dict[str, Any] = {
    "rounds": 2,
    "local-epochs": 2,
    "clients": 3,
    "train-images": 200,
    "alpha": 0.5,
    "min-samples": 5,
    "device": "cpu",
}


def trained(settings: dict[str, Any], results: Path) -> tuple[RunSettings, RunFolder]:
    """Run settings in this process."""
    config = parse({**settings, "results": str(results)})
    with LocalGrid() as grid:
        run(grid, config, lambda line: None)
    return config, RunFolder(config.folder)


def trained_on_digits(
    results: Path, method: str = "creff", **more: Any
) -> tuple[RunSettings, RunFolder]:
    """Run a method on 200 digits and test it on all."""
    return trained({**DIGITS, **SERVER_SMALL.get(method, {}), "method": method, **more}, results)


def trained_on_domains(
    root: Path, method: str = "fedbn", **more: Any
) -> tuple[RunSettings, RunFolder]:
    """Run a method on the domains `bright` and `dark`: four classes that differ in brightness, 40 images each."""
    for seed, (name, contrast) in enumerate({"bright": 1.0, "dark": 0.3}.items()):
        draw, labels = np.random.default_rng(seed), np.arange(80) % 4
        images = contrast * (draw.integers(0, 120, (80, 8, 8)) + 40 * labels[:, None, None])
        parts = {"train": slice(0, 40), "test": slice(40, 80)}
        np.savez(
            root / f"{name}.npz",
            **{f"{key}_images": images[part].astype(np.uint8) for key, part in parts.items()},
            **{f"{key}_labels": labels[part] for key, part in parts.items()},
        )
    names = ",".join(f"npz:{root / name}.npz" for name in ("bright", "dark"))
    domains = {
        "dataset": f"domains:{names}",
        "classes": "4",
        "input-shape": "1x8x8",
        "model": "mlp-bn",
        "rounds": 2,
    }
    return trained({**domains, "method": method, "device": "cpu", **more}, root / "results")


def exported(folder: RunFolder, output: Path, model: str = "", **more: Any) -> Path:
    """Export a run and return the model's folder."""
    export(TrainedRun(folder, model), output, **more)
    return output


def write_test_set(config: RunSettings, file: Path) -> Path:
    """Write the run's global test set as images and labels."""
    federation = federate(config.data, config.general.seed)
    images, labels = (
        federation.dataset.test.inputs[federation.global_test],
        federation.dataset.test.labels[federation.global_test],
    )
    np.savez(file, images=np.asarray(images)[:, 0], labels=labels)
    return file


def write_inputs(root: Path, domain: str, labeled: bool = True) -> Path:
    """Write a domain's test set as images and, perhaps, labels."""
    file = root / f"inputs-{domain}.npz"
    with np.load(root / f"{domain}.npz") as arrays:
        labels = {"labels": arrays["test_labels"]} if labeled else {}
        np.savez(file, images=arrays["test_images"], **labels)
    return file
