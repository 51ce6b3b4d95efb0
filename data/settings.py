"""The settings of data and partition: which images there are, and which client holds which."""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

from data.augmentation import AUGMENTATIONS
from data.sources.catalog import KNOWN


class DataError(ValueError):
    """Data that cannot be used as they are; the message names the file or folder, the key, the value and the rule."""


class SettingError(ValueError):
    """A setting whose value breaks a rule; the message names the key, the value and the rule."""

    def __init__(self, key: str, value: object, rule: str) -> None:
        super().__init__(f"{key} = {value!r}: {rule}")
        self.key = key


def require(holds: bool, key: str, value: object, rule: str) -> None:
    """Raise SettingError(key, value, rule) unless `holds`."""
    if not holds:
        raise SettingError(key, value, rule)


class Part(Protocol):
    """What has a section of settings: a variant or a server method."""

    name: ClassVar[str]


def at_least(part: Part, least: int, *fields: str) -> None:
    """Require numbers of a part to be finite and not below `least`."""
    for field in fields:
        value, rule = getattr(part, field), f"must be at least {least}" if least else "must be 0 or more"
        require(least <= value < math.inf, f"{part.name}.{field.replace('_', '-')}", value, rule)


def positive(part: Part, *fields: str) -> None:
    """Require numbers of a part to be finite and above 0."""
    for field in fields:
        value, rule = getattr(part, field), "must be a finite number greater than 0"
        require(0 < value < math.inf, f"{part.name}.{field.replace('_', '-')}", value, rule)


PARTITIONS = ("auto", "iid", "lda", "feddf", "llt", "domains", "pooled", "file")
USED_BY = {
    "alpha": ("lda", "feddf", "llt"),
    "min-samples": ("lda",),
    "llt-form": ("llt",),
    "parts-per-domain": ("domains",),
    "domain-percent": ("domains",),
    "unseen-domain": ("domains",),
}
"""The partitions that look at a setting; under any other it would change nothing."""


@dataclass(frozen=True)
class DataSettings:
    """Which data, and how they are dealt out to the clients."""

    dataset: str = "digits"
    """A name of `fedskew data list`, npz:PATH, folder:PATH or domains:NAME,NAME,..."""
    data_root: str = ""
    """Folder that holds the data sets' files; digits needs none."""
    download: bool = False
    """Let torchvision (for abide nilearn) download a missing data set into data-root."""
    cache: str = ""
    """Folder of the memory-mapped copies; empty is fedskew in the user's cache folder."""
    max_image_pixels: int = 100_000_000
    """Pixels of the largest image file that is decoded; a larger one is refused before it takes memory."""
    max_unpacked_mib: int = 4096
    """MiB that an npz file's arrays may have unpacked; more are refused before they are unpacked."""
    classes: str = ""
    """Class names in order, comma-separated, or their number; empty is the data set's own (npz and folder need it)."""
    input_shape: str = ""
    """CHANNELSxHEIGHTxWIDTH that every image is brought to; empty is the data set's own (npz and folder need it)."""
    mean: str = ""
    """Mean of each channel, comma-separated, on the scale 0..1; empty is the data set's own."""
    std: str = ""
    """Standard deviation of each channel, comma-separated, on the scale 0..1; empty is the data set's own."""
    recipe: str = "none"
    """Several domains: fedbn makes them equally large as in FedBN, digits also split anew; none changes nothing."""
    cinic_train: str = "train+valid"
    """cinic10: train+valid trains on both splits, as FedMA does; train leaves valid as validation data."""
    window_width: int = 32
    """abide: time points in a window."""
    window_stride: int = 1
    """abide: time points from one window to the next."""
    test_fold: int = 0
    """abide: which fifth of every site's subjects is for testing, 0 to 4."""
    augmentation: str = "none"
    """Training images at random: none, crop-flip, crop-flip-cutout (IWDS), rotate (and flip: Office-Caltech10,
    DomainNet) or imagenet (resized crop, flip, color jitter)."""
    train_images: int = 0
    """Draw that many training images, equally many of each class (of each domain, for domains:); 0 is all."""
    test_images: int = 0
    """Draw that many test images, equally many of each class (of each domain, for domains:); 0 is all."""
    holdout_per_class: int = 0
    """Training images of each class (of each domain, for domains:) kept at the server; no client holds them."""
    imbalance_factor: float = 1.0
    """Long tail: size of the largest class over size of the smallest; 1 leaves the classes as they are."""
    largest_class: int = 0
    """Long tail: images of class 0, n_max; 0 is as many as the smallest class allows all to have before the cut."""
    clients: int = 0
    """Number of clients N; 0 is 10, or one client a domain (a part of one), or the one of partition pooled."""
    partition: str = "auto"
    """iid, lda (Dirichlet, balanced), feddf (Dirichlet in groups of ten clients, then equal sizes), llt (a class mostly
    at its main clients), domains, or pooled (one client with everything); auto is lda, or domains."""
    partition_file: str = ""
    """File of `fedskew data save-partition` that says who holds what; imbalance-factor then only names shot groups."""
    alpha: float = 0.1
    """lda, feddf: the Dirichlet's concentration. llt: the share of a class that its main clients hold."""
    min_samples: int = 10
    """lda: draw again until every client holds at least that many samples."""
    llt_form: str = "exact"
    """llt: exact, the main clients hold alpha; or literal, the public code's shares, .497 of alpha = .9 for N = 100."""
    parts_per_domain: int = 0
    """domains: 1 to 10 cuts every domain into ten parts, that many of which are a client each; 0 leaves it whole."""
    domain_percent: float = 100.0
    """domains: percent of a domain's training samples that its client holds, a multiple of 10 or less than 10."""
    unseen_domain: str = ""
    """domains: the name of one that no client holds; after the last round the models are measured on its test set."""

    def __post_init__(self) -> None:
        require(bool(self.dataset), "dataset", self.dataset, "must name a data set")
        for key in ("train_images", "test_images", "holdout_per_class", "largest_class", "clients"):
            require(getattr(self, key) >= 0, key.replace("_", "-"), getattr(self, key), "must be 0 or more")
        for key in ("max_image_pixels", "max_unpacked_mib"):
            require(getattr(self, key) >= 1, key.replace("_", "-"), getattr(self, key), "must be at least 1")
        require(self.imbalance_factor >= 1, "imbalance-factor", self.imbalance_factor, "must be at least 1")
        require(self.partition in PARTITIONS, "partition", self.partition, f"must be one of {', '.join(PARTITIONS)}")
        known = tuple(AUGMENTATIONS)
        require(self.augmentation in known, "augmentation", self.augmentation, f"must be one of {', '.join(known)}")
        require(self.recipe in ("none", "fedbn"), "recipe", self.recipe, "must be none or fedbn")
        known = ("train+valid", "train")
        require(self.cinic_train in known, "cinic-train", self.cinic_train, f"must be one of {', '.join(known)}")
        rule = "must be at least 3, as two time points always correlate perfectly"
        require(self.window_width >= 3, "window-width", self.window_width, rule)
        require(self.window_stride >= 1, "window-stride", self.window_stride, "must be at least 1")
        require(0 <= self.test_fold <= 4, "test-fold", self.test_fold, "must be 0 to 4")
        require(self.alpha > 0, "alpha", self.alpha, "must be greater than 0")
        if self.partition == "llt":
            require(self.alpha <= 1, "alpha", self.alpha, "is the main clients' share under llt and must be at most 1")
        require(self.min_samples >= 1, "min-samples", self.min_samples, "must be at least 1")
        for key in ("largest_class", "train_images", "test_images"):
            rule = "has no effect with partition-file, which says which samples there are"
            require(not (self.partition_file and getattr(self, key)), key.replace("_", "-"), getattr(self, key), rule)
        require(self.llt_form in ("exact", "literal"), "llt-form", self.llt_form, "must be exact or literal")
        require(0 <= self.parts_per_domain <= 10, "parts-per-domain", self.parts_per_domain, "must be 0 to 10")
        percent, rule = self.domain_percent, "must be a multiple of 10 up to 100, or between 0 and 10"
        require(0 < percent < 10 or percent in range(10, 101, 10), "domain-percent", percent, rule)
        rule = "contradicts parts-per-domain: set one of the two"
        require(percent == 100 or not self.parts_per_domain, "domain-percent", percent, rule)

    @property
    def long_tailed(self) -> bool:
        """Whether classes have shot groups: a long tail is cut, or the data come with one."""
        known = KNOWN.get(self.dataset)
        return self.imbalance_factor > 1 or (known is not None and known.long_tailed)

    @property
    def in_files(self) -> bool:
        """Whether the images stay in their files, decoded when asked for: ImageNet-LT's would be 17 GB."""
        known = KNOWN.get(self.dataset)
        return known is not None and known.image_folder != ""
