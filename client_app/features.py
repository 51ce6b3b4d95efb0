"""The features of a backbone that nothing trains: computed once, kept beside the data's copy.

Every image goes through the backbone alone, so its features depend on no other image, to the bit.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from client_app.client import Variant
from client_app.models import RANDOM_CONV, ModelSettings, build
from client_app.models.backbone import sha256_of
from client_app.models.settings import of_hash
from client_app.process import make_deterministic
from data import Federation
from data.readers import cache
from data.samples import SampleCache, Samples

VERSION = 1
"""Part of every key: raise it when the same image would have other features."""


class Rows:
    """The features of some of a data set's samples, found by these samples' own indices."""

    def __init__(self, features_MD: NDArray[np.generic], indices_M: NDArray[np.int64]) -> None:
        self.features_MD, self.indices_M = features_MD, indices_M

    def __getitem__(self, indices: NDArray[np.int64]) -> NDArray[np.generic]:
        rows = np.searchsorted(self.indices_M, indices)
        features: NDArray[np.generic] = self.features_MD[rows]
        return features


def with_features(
    federation: Federation,
    model: str,
    settings: ModelSettings,
    folder: str,
    device: str,
    changes_images: bool = False,
) -> Federation:
    """Return the federation with the features of its images in their place; the same one where these are trained.

    Args:
        federation: of images.
        model: the setting model.
        settings: of the model.
        folder: the setting cache.
        device: on which they are computed.
        changes_images: whether a variant does, so that it needs them.

    Raises:
        SettingError: weights that are not the model's.
        DataError: a cache that cannot be written.
    """
    frozen = settings.freeze == "all"
    changed = federation.augmentation != "none" or changes_images
    if not frozen and (model != RANDOM_CONV or changed):
        return federation
    if frozen and not settings.weights_sha256:
        # The features are kept under this hash, so no other file may make them.
        settings = of_hash(settings, sha256_of(settings.weights))
    data = federation.dataset
    splits = {}
    for name, indices_M in used(federation).items():
        features_MD = features_of(federation, name, indices_M, model, settings, folder, device)
        width = features_MD.shape[1]
        splits[name] = replace(getattr(data, name), inputs=Rows(features_MD, indices_M))
    vectors = replace(data, shape=(width,), mean=(0.0,), std=(1.0,), **splits)
    return replace(
        federation,
        dataset=vectors,
        augmentation="none",
        _cache=SampleCache(),
    )


def changes_images(variants: Sequence[Variant]) -> bool:
    """Return whether one of the variants trains on images that it changes at random."""
    return any("images" in variant.needs for variant in variants)


def used(federation: Federation) -> dict[str, NDArray[np.int64]]:
    """Return the indices, in order, of the samples of each split that a client or the server has."""
    train = [*federation.train_indices, federation.holdout_indices]
    test = [federation.global_test]
    if federation.validation_indices is not None:
        train += federation.validation_indices

    held = {
        "train": np.unique(np.concatenate(train)),
        "test": np.unique(np.concatenate(test)),
    }
    val = federation.dataset.val
    if val is not None:
        held["val"] = np.arange(len(val.labels))
    return held


def features_of(
    federation: Federation,
    split: str,
    indices_M: NDArray[np.int64],
    model: str,
    settings: ModelSettings,
    folder: str,
    device: str,
) -> NDArray[np.generic]:
    """Return (M, D) float32, memory-mapped: the features of a split's samples, computed where there are none yet."""
    data = federation.dataset
    chosen = hashlib.sha256(indices_M.astype("<i8").tobytes()).hexdigest()
    made_of = [
        VERSION,
        data.content,
        split,
        chosen,
        data.mean,
        data.std,
        model,
        settings.weights_sha256,
    ]
    computed = [
        settings.image_side,
        device,
        torch.__version__,
        torch.backends.cpu.get_cpu_capability(),
    ]
    key = cache.key_of([*made_of, *computed], [])
    path = cache.cache_folder(folder) / f"features-{key[:24]}"

    def made() -> dict[str, NDArray[np.generic]]:
        samples = federation.at(getattr(data, split), indices_M, device)
        return {"features": compute(samples, data.shape, model, settings, device)}

    arrays, _ = cache.cached(lambda: path, made)
    return arrays["features"]


@torch.no_grad()
def compute(
    samples: Samples,
    shape: tuple[int, ...],
    model: str,
    settings: ModelSettings,
    device: str,
) -> NDArray[np.float32]:
    """Return (M, D): the features of samples of this shape, one image at a time."""
    make_deterministic()
    # With freeze = all `build` returns the head alone. The head here is not used, so its classes and seed are any.
    whole = replace(settings, freeze="stages") if settings.freeze == "all" else settings
    backbone = build(model, shape, classes=2, seed=0, settings=whole)
    backbone.to(device).eval()
    # One by one: whether a kernel rounds a batch's last lanes alike depends on the build of torch.
    rows = []
    for index_1 in torch.split(torch.arange(len(samples), device=device), 1):
        features_1D = backbone.features(samples.batch(index_1))
        rows.append(features_1D.cpu())
    features_MD: NDArray[np.float32] = torch.cat(rows).numpy()
    return features_MD
