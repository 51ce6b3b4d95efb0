"""The settings of data set and partition."""

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

from data.errors import SettingError
from data.readers.catalog import IMAGENET_LT
from data.rules import OneOf, Rule, Settings
from data.text import NAMES_RULE, finite_number, is_whole, names_in

PARTITIONS: dict[str, tuple[str, ...]] = {
    "auto": (),
    "iid": (),
    "lda": ("alpha", "min_samples", "lda_form"),
    "feddf": ("alpha",),
    "llt": ("alpha",),
    "quantity": ("alpha", "min_samples"),
    "classes-per-client": ("classes_per_client",),
    "domains": ("parts_per_domain", "domain_percent"),
    "pooled": (),
    "file": (),
}
"""By name, the fields that a partition looks at; any other would change nothing."""
FRAME = "must be a number from 0, or middle"
ROLES = ("path", "label", "site", "patient", "split", "fold")
"""What a column can mean."""
IGNORE = "ignore"
"""What `columns` calls the columns that are left out; there may be several."""


PERCENT = Rule(
    lambda percent: 0 < percent < 10 or percent in range(10, 101, 10),
    "must be a multiple of 10 up to 100, or between 0 and 10",
)


SHAPE = re.compile(r"([1-9][0-9]{0,8})(?:x([1-9][0-9]{0,8})x([1-9][0-9]{0,8}))?")
LARGEST_INPUT = 100_000_000
"""Numbers that one image or vector may have."""


OF_OWN = (
    "pixel_range",
    "frame",
    "columns",
    "missing",
    "labels",
)
"""Settings by which one's own data are read, and no other."""


@dataclass(frozen=True)
class DataSettings(Settings):
    """The data set, and its partition over the clients."""

    dataset: Annotated[str, Rule(bool, "must name a data set")] = "digits"
    """A name of `fedskew data list`, npz:PATH, folder:PATH, csv:PATH, domains:NAME,NAME,... or sites:FILE, which is
    federation.toml."""
    data_root: str = ""
    """Folder that holds the data sets' files; digits needs none."""
    download: bool = False
    """Let torchvision download a missing data set into data-root."""
    cache: str = ""
    """Folder of the memory-mapped copies; empty is fedskew in the user's cache folder."""
    classes: str = ""
    """Class names in order, comma-separated (one with a comma in it in double quotes), or their number; empty is the
    data set's own (one's own data need it)."""
    input_shape: str = ""
    """CHANNELSxHEIGHTxWIDTH that every image is brought to; empty is the data set's own (one's own data need it)."""
    pixel_range: str = ""
    """LOW,HIGH: which values are black and white in images of more than 8 bits (16-bit files, DICOM, NIfTI, arrays);
    empty is what the file says, or its type's range."""
    frame: Annotated[str, Rule(lambda text: text in ("", "middle") or is_whole(text), FRAME)] = ""
    """Which image of a file that holds several: DICOM, TIFF, GIF, WebP, APNG, or the slices of a NIfTI volume from the
    bottom of the body to its top; empty refuses such a file."""
    columns: str = ""
    """csv, hf: ROLE=NAME,... says which column is path, label, site, patient, split or fold where its name is another
    one; nothing after = is none. ignore=NAME,NAME leaves columns out."""
    labels: str = ""
    """folder: where the labels of DICOM files are, in place of class folders: a CSV file by patient, or the keyword of
    a DICOM element such as BodyPartExamined."""
    missing: Annotated[str, OneOf("refuse", "drop", "median")] = "refuse"
    """csv, hf, labels: refuse or drop rows with an empty label, site, patient or input (also NA, nan, null and the
    like; with labels also files without a row); median fills inputs, also vectors of npz, from the training rows."""
    mean: str = ""
    """Mean of each channel, comma-separated, on the scale 0..1; empty is the data set's own, and of one's own vectors
    that of each column's training rows."""
    std: str = ""
    """Standard deviation of each channel, comma-separated; empty as for mean. Vectors with mean = 0 and std = 1 stay
    as they are."""
    recipe: Annotated[str, OneOf("none", "fedbn")] = "none"
    """Several domains: fedbn makes them equally large as in FedBN, digits also split anew; none changes nothing."""
    window_stride: Annotated[int, Ge(1)] = 1
    """abide: time points from one window of 32 to the next."""
    test_fold: Annotated[int, Ge(0)] = 0
    """abide, and own data without a test split: the fifth that is for testing, 0 to 4; or the column fold's value."""
    augmentation: Annotated[
        str, OneOf("none", "crop-flip", "crop-flip-cutout", "rotate", "imagenet")
    ] = "none"
    """Training images at random: none, crop-flip, crop-flip-cutout (IWDS), rotate (and flip: Office-Caltech10,
    DomainNet) or imagenet (resized crop, flip, color jitter)."""
    train_images: Annotated[int, Ge(0)] = 0
    """Number of training images to draw, equally many of each class (of each domain, for domains:); 0 is all."""
    test_images: Annotated[int, Ge(0)] = 0
    """Number of test images to draw, equally many of each class (of each domain, for domains:); 0 is all."""
    holdout_per_class: Annotated[int, Ge(0)] = 0
    """Training images of each class (of each domain, for domains:) kept at the server; no client has them."""
    validation_fraction: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Share of every client's training samples, class by class, for validation instead of training."""
    evaluate_on: Annotated[str, OneOf("test", "validation")] = "test"
    """test, or validation: the validation samples replace the test set, which is then not read."""
    imbalance_factor: Annotated[float, Ge(1)] = 1.0
    """Long tail: size of the largest class over size of the smallest; 1 leaves the classes as they are."""
    largest_class: Annotated[int, Ge(0)] = 0
    """Long tail: images of class 0, n_max; 0 is as many as the smallest class allows all to have before the cut."""
    clients: Annotated[int, Ge(0), Le(1_000_000)] = 0
    """Number of clients N; 0 is 10, or one client a domain (a part of one), or the one of partition pooled."""
    partition: Annotated[str, OneOf(*PARTITIONS)] = "auto"
    """iid, lda (Dirichlet), feddf (Dirichlet in groups of ten clients, then equal sizes), llt (a class mostly
    at its main clients), quantity (sizes alone differ), classes-per-client, domains, pooled (one client with
    everything) or file (partition-file); auto is lda, or domains."""
    partition_file: str = ""
    """File with a JSON list of each client's list of training samples, as of `fedskew data save-partition`;
    imbalance-factor then only names shot groups."""
    alpha: Annotated[float, Gt(0)] = 0.1
    """lda, feddf, quantity: the Dirichlet's concentration. llt: the share of a class that its main clients hold."""
    min_samples: Annotated[int, Ge(1)] = 10
    """lda, quantity: draw again until every client has at least that many samples."""
    lda_form: Annotated[str, OneOf("balanced", "plain")] = "balanced"
    """lda: balanced, a client that has its even share gets nothing of later classes, as in public code; or plain, the
    Dirichlet's shares alone, as in the papers' texts."""
    classes_per_client: Annotated[int, Ge(1)] = 2
    """classes-per-client: number of classes per client; the clients of a class share it equally."""
    parts_per_domain: Annotated[int, Ge(0), Le(10)] = 0
    """domains: 1 to 10 cuts every domain into ten parts and makes that many of them clients; 0 does not cut."""
    domain_percent: Annotated[float, PERCENT] = 100.0
    """domains: percent of a domain's training samples at its client, a multiple of 10 or less than 10."""

    def validate(self) -> None:
        if self.partition == "llt":
            rule = "is the main clients' share under llt and must be at most 1"
            self.require(self.alpha <= 1, "alpha", rule)
        if self.partition_file:
            for field in ("largest_class", "train_images", "holdout_per_class"):
                rule = "has no effect with partition-file, which says which samples are trained on"
                self.require(not getattr(self, field), field, rule)
        # These two are read for their errors.
        if self.pixel_range:
            _ = self.pixel_span
        _ = self.column_names
        both = self.domain_percent != 100 and self.parts_per_domain
        rule = "contradicts parts-per-domain"
        self.require(not both, "domain_percent", rule, "set one of the two")

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The classes in order; a number of them names them 0, 1 and so on.

        Raises:
            SettingError: fewer than two classes, an empty name, a name twice, or quotes that do not end.
        """
        stated = self.classes.strip()
        if is_whole(stated):
            # By the digits, before int and range take memory for it.
            self.require(len(stated) <= 6, "classes", "must be less than a million classes")
            classes = tuple(map(str, range(int(stated))))
        else:
            classes = self._names("classes")
        rule = "must be at least two names, or a number of at least 2"
        self.require(len(classes) >= 2, "classes", rule)
        self.require(all(classes), "classes", "must not hold an empty name")
        self.require(len(set(classes)) == len(classes), "classes", "must name each class once")
        return classes

    def _names(self, field: str) -> tuple[str, ...]:
        """The names that a setting lists. Raises SettingError for quotes that do not end."""
        try:
            return names_in(getattr(self, field))
        except ValueError:
            raise SettingError(field, getattr(self, field), NAMES_RULE) from None

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """(channels, height, width) of an image, or (features,) of a vector.

        Raises:
            SettingError: anything but one or three positive whole numbers joined by x.
        """
        match = SHAPE.fullmatch(self.input_shape.lower())
        if match is None:
            rule = "must be CHANNELSxHEIGHTxWIDTH such as 3x32x32, or one number of features for vectors"
            raise self.error("input_shape", rule)
        shape = tuple(int(side) for side in match.groups() if side)
        rule = f"must be at most {LARGEST_INPUT} numbers"
        self.require(math.prod(shape) <= LARGEST_INPUT, "input_shape", rule)
        return shape

    @property
    def pixel_span(self) -> tuple[float, float]:
        """LOW and HIGH of pixel-range. Raises SettingError for anything but two rising numbers."""
        span = numbers("pixel-range", self.pixel_range)
        rising = len(span) == 2 and span[0] < span[1]
        self.require(rising, "pixel_range", "must be LOW,HIGH with LOW below HIGH")
        low, high = span
        return low, high

    @property
    def column_names(self) -> dict[str, str]:
        """The columns' names by their role, of the roles that `columns` names, without those that are left out.

        Raises:
            SettingError: a part without =, an unknown role, one that is there twice, or a column with two roles.
        """
        return self._columns[0]

    @property
    def ignored_columns(self) -> tuple[str, ...]:
        """The columns that `columns` leaves out. Raises SettingError as `column_names`."""
        return self._columns[1]

    @property
    def _columns(self) -> tuple[dict[str, str], tuple[str, ...]]:
        """What `column_names` and `ignored_columns` return."""
        names: dict[str, str] = {}
        ignored: list[str] = []
        role = ""
        for part in filter(None, self._names("columns")):
            before, equals, name = (text.strip() for text in part.partition("="))
            role = before if equals else role
            if role == IGNORE and (name or not equals):
                # A further name of ignore=NAME,NAME has no =, as no part of another role.
                ignored.append(name if equals else part)
            elif equals and role in ROLES and role not in names:
                names[role] = name
            else:
                rule = (
                    f"must be ROLE=NAME,... with {', '.join(ROLES)} as roles, each once, and with a comma in "
                    'NAME as "ROLE=NAME",...; ignore=NAME,NAME leaves columns out'
                )
                raise SettingError("columns", self.columns, rule)
        columns = [*names.values(), *ignored]
        for name in ignored:
            self.require(columns.count(name) == 1, "columns", f"must name column {name!r} once")
        return names, tuple(ignored)

    @property
    def means(self) -> tuple[float, ...]:
        """The mean of each channel; () where the training rows decide. Raises SettingError for what is no list of
        finite numbers."""
        return numbers("mean", self.mean) if self.mean.strip() else ()

    @property
    def stds(self) -> tuple[float, ...]:
        """The standard deviation of each channel; () where the training rows decide. Raises SettingError for what is
        no list of finite numbers."""
        return numbers("std", self.std) if self.std.strip() else ()

    @property
    def long_tailed(self) -> bool:
        """Whether classes have shot groups: a long tail is cut, or the data come with one."""
        return self.imbalance_factor > 1 or self.in_files

    @property
    def in_files(self) -> bool:
        """Whether the images stay in their files and are decoded on demand: ImageNet-LT's would be 17 GB."""
        return self.dataset == IMAGENET_LT


USUAL = DataSettings()
"""All defaults."""


def numbers(key: str, text: str) -> tuple[float, ...]:
    """A comma-separated list of finite numbers.

    Raises:
        SettingError: a part that is not a finite number.
    """
    try:
        return tuple(map(finite_number, text.split(",")))
    except ValueError:
        raise SettingError(key, text, "must be finite numbers separated by commas") from None
