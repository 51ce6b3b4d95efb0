"""The features of a backbone that nothing trains: computed once, kept beside the data's copy.

Every image goes through the backbone alone, so its features depend on no other image, to the bit.

With `components`, the principal components of the standardized features over all clients' training samples take their
place. They are computed of sums of integers alone, count, sum and sum of z z^T, as heads in closed form are: what a
masked sum between the clients would give, to the bit. So they depend neither on the partition nor on the engine. A
simulation has all samples at hand and sums them itself; sites would have to be asked, which is refused.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from client_app.client import Variant
from client_app.models import RANDOM_CONV, ModelSettings, build
from client_app.models.backbone import sha256_of
from client_app.models.settings import of_hash
from client_app.process import make_deterministic
from client_app.variants.feature_statistics import IntegerGrid, weighted_gram
from data import Federation, SettingError
from data.readers import cache
from data.samples import SampleCache, Samples

VERSION = 1
"""Part of every key: raise it when the same image would have other features."""
COMPONENT_BITS = 16
"""Of the grid on which principal components are computed: its step is a 65,536th of the largest feature or less."""
AT_ONCE = 4096
"""Samples that become integers at once."""


class Rows:
    """The features of some of a data set's samples, found by these samples' own indices."""

    def __init__(
        self, features_MD: NDArray[np.generic], indices_M: NDArray[np.int64], content: str = ""
    ) -> None:
        self.features_MD, self.indices_M, self.content = features_MD, indices_M, content

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
    variants: Sequence[Variant] = (),
) -> Federation:
    """Return the federation with the features of its images in their place; the same one where these are trained.

    Args:
        federation: of images.
        model: the setting model.
        settings: of the model.
        folder: the setting cache.
        device: on which they are computed.
        variants: of the run; one that changes images at random needs them.

    Raises:
        SettingError: weights that are not the model's, or more components than the clients' features have.
        DataError: a cache that cannot be written.
    """
    frozen = settings.freeze == "all"
    changed = federation.augmentation != "none"
    changed = changed or any("images" in variant.needs for variant in variants)
    if not frozen and (model != RANDOM_CONV or changed):
        return federation
    if frozen and not settings.weights_sha256:
        # The features are kept under this hash, so no other file may make them.
        settings = of_hash(settings, sha256_of(settings.weights))
    data = federation.dataset
    rows = {}
    for name, indices_M in used(federation).items():
        rows[name] = features_of(federation, name, indices_M, model, settings, folder, device)
    if settings.components:
        clients_N = np.sort(np.concatenate(federation.train_indices))
        rows = components_of(rows, clients_N, settings.components, folder)
    width = rows["train"].features_MD.shape[1]
    splits = {name: replace(getattr(data, name), inputs=one) for name, one in rows.items()}
    vectors = replace(data, shape=(width,), mean=(0.0,), std=(1.0,), **splits)
    return replace(
        federation,
        dataset=vectors,
        augmentation="none",
        _cache=SampleCache(),
    )


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
) -> Rows:
    """Return the features of a split's samples, (M, D) float32, memory-mapped, computed where there are none yet."""
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

    arrays, content = cache.cached(lambda: path, made)
    return Rows(arrays["features"], indices_M, content)


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
    whole = replace(settings, freeze="none", components=0, hidden=0)
    backbone = build(model, shape, classes=2, seed=0, settings=whole)
    backbone.to(device).eval()
    # One by one: whether a kernel rounds a batch's last lanes alike depends on the build of torch.
    rows = []
    for index_1 in torch.split(torch.arange(len(samples), device=device), 1):
        features_1D = backbone.features(samples.batch(index_1))
        rows.append(features_1D.cpu())
    features_MD: NDArray[np.float32] = torch.cat(rows).numpy()
    return features_MD


def components_of(
    rows: dict[str, Rows], clients_N: NDArray[np.int64], components: int, folder: str
) -> dict[str, Rows]:
    """Return the principal components of all splits' features, computed where there are none yet.

    Args:
        rows: the features, by split.
        clients_N: the indices of all clients' training samples, in order.
        components: how many.
        folder: the setting cache.
    """
    chosen = hashlib.sha256(clients_N.astype("<i8").tobytes()).hexdigest()
    contents = [one.content for one in rows.values()]
    key = cache.key_of([VERSION, "standardized", COMPONENT_BITS, components, chosen, contents], [])
    path = cache.cache_folder(folder) / f"components-{key[:24]}"

    def made() -> dict[str, NDArray[np.generic]]:
        make_deterministic()
        mean_D, directions_DK = principal_components(rows["train"][clients_N], components)
        return {
            name: projected(one.features_MD, mean_D, directions_DK) for name, one in rows.items()
        }

    arrays, content = cache.cached(lambda: path, made)
    return {name: Rows(arrays[name], one.indices_M, content) for name, one in rows.items()}


def principal_components(
    features_ND: NDArray[np.generic], components: int
) -> tuple[Tensor, Tensor]:
    """Return the mean, (D,), and the directions, (D, K): (z - mean) @ directions has mean 0 and covariance 1.

    Features are standardized first, so the directions are eigenvectors v of their correlation, those of the largest
    eigenvalues, as v / sqrt(value) / standard deviation of each feature. A feature that never varies has no part.

    Raises SettingError where an eigenvalue is 0 but for rounding: the features have fewer directions than that.
    """
    samples, width = features_ND.shape
    largest = float(np.abs(features_ND).max())
    grid = IntegerGrid(COMPONENT_BITS, 2.0 ** math.ceil(math.log2(max(largest, 1e-30))))
    sums_D = torch.zeros(width, dtype=torch.int64)
    squares_DD = torch.zeros(width, width, dtype=torch.int64)
    for first in range(0, samples, AT_ONCE):
        part_ND = torch.from_numpy(np.array(features_ND[first : first + AT_ONCE]))
        integers_ND = grid.integers(part_ND)
        sums_D += integers_ND.sum(0)
        ones_N = torch.ones(len(integers_ND), dtype=torch.int64)
        squares_DD += weighted_gram(integers_ND, ones_N, grid.bits)

    mean_D = sums_D.double() * grid.step / samples
    covariance_DD = squares_DD.double() * grid.step**2 / samples - torch.outer(mean_D, mean_D)
    variances_D = covariance_DD.diagonal()
    varies_D = variances_D > 1e-9 * variances_D.max()
    # 0 of a feature that never varies.
    scale_D = torch.where(varies_D, variances_D, math.inf).rsqrt()
    values_D, vectors_DD = torch.linalg.eigh(covariance_DD * torch.outer(scale_D, scale_D))
    values_K = values_D.flip(0)[:components]
    vectors_DK = vectors_DD.flip(1)[:, :components]
    if values_K[-1] <= 1e-9 * values_K[0]:
        rule = f"is more than the directions in which the {samples} training samples' features vary"
        raise SettingError("components", components, rule)
    # An eigenvector has any sign: its largest entry is positive here.
    largest_K = vectors_DK.gather(0, vectors_DK.abs().argmax(0, keepdim=True))
    return mean_D, scale_D[:, None] * vectors_DK * largest_K.sign() / values_K.sqrt()


def projected(
    features_MD: NDArray[np.generic], mean_D: Tensor, directions_DK: Tensor
) -> NDArray[np.float32]:
    """Return (M, K) float32: the components of each sample, one sample at a time as in `compute`."""
    directions_KD = directions_DK.T.contiguous()
    rows = []
    for feature_D in torch.from_numpy(np.array(features_MD)):
        rows.append((directions_KD @ (feature_D.double() - mean_D)).float())
    components_MK: NDArray[np.float32] = torch.stack(rows).numpy()
    return components_MK
