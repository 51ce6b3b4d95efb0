"""The catalog of named data sets: classes, shape, normalization and location of each, without reading it."""

from dataclasses import dataclass, replace
from pathlib import Path

from data.errors import SettingError
from data.text import NAMES_RULE, names_in


@dataclass(frozen=True)
class CatalogEntry:
    """A data set that can be asked for by name."""

    class_names: tuple[str, ...]
    shape: tuple[int, ...]
    """Channels, height, width; or the length of a vector."""
    mean: tuple[float, ...]
    """Of each channel, on the scale 0..1."""
    std: tuple[float, ...]
    """Of each channel, on the scale 0..1."""
    layout: str = "torchvision"
    """Which reader of named.py understands the files: a key of LISTS, mat, abide, torchvision, or scikit-learn."""
    files: tuple[str, ...] = ()
    """Patterns, below data-root, of the files (or folders) of the official layout; all must be there."""
    torchvision_class: str = ""
    """Name in torchvision.datasets, which can download it; empty where torchvision has none."""
    torchvision_root: str = ""
    """What torchvision calls root, below data-root."""
    how: str = ""
    """How to get it where torchvision cannot download it."""
    family: str = "digits"
    """How it is treated as one domain of several: a key of FAMILIES."""


@dataclass(frozen=True)
class Family:
    """The common properties of the domains of one problem."""

    shape: tuple[int, ...]
    mean: float
    std: float
    train_share: float
    """recipe fedbn: training samples of each domain, over those of the smallest domain."""
    val_share: float
    """recipe fedbn: validation samples, likewise, from the end of the same list."""
    resplit: bool = False
    """recipe fedbn: whether train and test are pooled and split anew, 80 to 20."""


# FedBN (Li et al., 2021): digits are brought to 3x28x28 and normalized by .5/.5, its other images are not normalized.
# PACS is not in that paper. It stands in for DomainNet, and from 450 images a domain its share leaves 108 for training,
# where DomainNet's leaves 105.
FAMILIES = {
    "digits": Family((3, 28, 28), 0.5, 0.5, 1.0, 0.0, resplit=True),
    "office": Family((3, 256, 256), 0.0, 1.0, 0.5, 0.4),
    "domainnet": Family((3, 256, 256), 0.0, 1.0, 0.05, 0.05),
    "pacs": Family((3, 256, 256), 0.0, 1.0, 0.3, 0.0),
    "abide": Family((6105,), 0.0, 1.0, 1.0, 0.0),
    "scanners": Family((1, 8, 8), 0.5, 0.5, 1.0, 0.0),
}


IMAGENET_LT = "imagenet-lt"
"""The data set whose images stay in their files, cut to their center, and whose classes come as a long tail."""

_DIGITS = tuple(str(digit) for digit in range(10))
_IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
# CReFF (Shang et al., 2022) uses these for CIFAR-10 and CIFAR-100 alike, and so do FedNova and FedBE.
_CIFAR_MEAN, _CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
_CIFAR100 = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle "
    "caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant "
    "flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man "
    "maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree "
    "plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper "
    "snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train "
    "trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)
_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
_FASHION = "T-shirt Trouser Pullover Dress Coat Sandal Shirt Sneaker Bag Ankle_boot"
_HALF = (0.5, 0.5, 0.5)
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_OFFICE = (
    "back_pack bike calculator headphones keyboard laptop_computer monitor mouse mug projector"
)
_PACS = "dog elephant giraffe guitar horse house person"
_DOMAINNET = "bird feather headphones ice_cream teapot tiger whale windmill wine_glass zebra"


def _domains(
    family: str, class_names: str, folder: str, domains: str, how: str
) -> dict[str, CatalogEntry]:
    """Return the domains of a family, of which each has a folder of images below `folder`."""
    return {
        f"{family}-{domain.replace('_', '-')}": CatalogEntry(
            tuple(class_names.split()),
            (3, 256, 256),
            (0.0,) * 3,
            (1.0,) * 3,
            layout=family,
            files=(f"{folder}/{domain}/*",),
            how=how.format(domain=domain),
            family=family,
        )
        for domain in domains.split()
    }


def _abide(site: str) -> CatalogEntry:
    return CatalogEntry(
        ("control", "autism"),
        (6105,),
        (0.0,),
        (1.0,),
        layout="abide",
        files=(f"abide/{site}.npz",),
        how="make the file from what nilearn fetches (docs/reference/data.md)",
        family="abide",
    )


_SMALL_DIGITS = CatalogEntry(_DIGITS, (1, 8, 8), (0.5,), (0.5,), "scikit-learn")
_SCANNER = replace(_SMALL_DIGITS, family="scanners")
KNOWN: dict[str, CatalogEntry] = {
    "digits": _SMALL_DIGITS,
    "digits-3-8": replace(_SMALL_DIGITS, class_names=("3", "8")),
    "digits-plain": _SCANNER,
    "digits-faint": _SCANNER,
    "digits-blurred": _SCANNER,
    "digits-noisy": _SCANNER,
    "mnist": CatalogEntry(
        _DIGITS,
        (1, 28, 28),
        (0.1307,),
        (0.3081,),
        files=tuple(f"MNIST/raw/{file}" for file in _IDX),
        torchvision_class="MNIST",
    ),
    # IWDS only divides by 255; these are the training pixels' own mean and standard deviation.
    "fashion-mnist": CatalogEntry(
        tuple(name.replace("_", " ") for name in _FASHION.split()),
        (1, 28, 28),
        (0.2860,),
        (0.3530,),
        files=tuple(f"FashionMNIST/raw/{file}" for file in _IDX),
        torchvision_class="FashionMNIST",
    ),
    # The training pixels' own, as torchvision decodes them.
    "usps": CatalogEntry(
        _DIGITS,
        (1, 16, 16),
        (0.2539,),
        (0.3842,),
        files=("USPS/usps.bz2", "USPS/usps.t.bz2"),
        torchvision_class="USPS",
        torchvision_root="USPS",
    ),
    "cifar10": CatalogEntry(
        tuple(_CIFAR10.split()),
        (3, 32, 32),
        _CIFAR_MEAN,
        _CIFAR_STD,
        files=("cifar-10-batches-py/*",),
        torchvision_class="CIFAR10",
    ),
    "cifar100": CatalogEntry(
        tuple(_CIFAR100.split()),
        (3, 32, 32),
        _CIFAR_MEAN,
        _CIFAR_STD,
        files=("cifar-100-python/*",),
        torchvision_class="CIFAR100",
    ),
    # FedBN (Li et al., 2021) normalizes every domain with .5/.5; torchvision has no class for it.
    "mnist-m": CatalogEntry(
        _DIGITS,
        (3, 32, 32),
        _HALF,
        _HALF,
        layout="mnist-m",
        files=("mnist_m/mnist_m_train_labels.txt", "mnist_m/mnist_m_test_labels.txt"),
        how="unpack mnist_m.tar.gz (Ganin et al., 2016) into data-root",
    ),
    "svhn": CatalogEntry(
        _DIGITS,
        (3, 32, 32),
        _HALF,
        _HALF,
        layout="mat",
        files=("SVHN/train_32x32.mat", "SVHN/test_32x32.mat"),
        how="the .mat files of SVHN's cropped digits (Netzer et al., 2011)",
    ),
    "synthdigits": CatalogEntry(
        _DIGITS,
        (3, 32, 32),
        _HALF,
        _HALF,
        layout="mat",
        files=("SynthDigits/synth_train_32x32.mat", "SynthDigits/synth_test_32x32.mat"),
        how="the .mat files of SynthDigits (Ganin and Lempitsky, 2015)",
    ),
    # FedMA (Wang et al., 2020).
    "cinic10": CatalogEntry(
        tuple(_CIFAR10.split()),
        (3, 32, 32),
        (0.4789, 0.4723, 0.4305),
        (0.2421, 0.2383, 0.2587),
        layout="cinic",
        files=("CINIC-10/train/*", "CINIC-10/valid/*", "CINIC-10/test/*"),
        how="unpack CINIC-10.tar.gz (Darlow et al., 2018) into data-root/CINIC-10",
    ),
    "tiny-imagenet": CatalogEntry(
        tuple(map(str, range(200))),
        (3, 64, 64),
        _IMAGENET_MEAN,
        _IMAGENET_STD,
        layout="tiny-imagenet",
        files=(
            "tiny-imagenet-200/wnids.txt",
            "tiny-imagenet-200/train/*/images",
            "tiny-imagenet-200/val/val_annotations.txt",
        ),
        how="unpack tiny-imagenet-200.zip (Stanford CS231n) into data-root",
    ),
    IMAGENET_LT: CatalogEntry(
        tuple(map(str, range(1000))),
        (3, 224, 224),
        _IMAGENET_MEAN,
        _IMAGENET_STD,
        layout="imagenet-lt",
        files=("ImageNet/ImageNet_LT_train.txt", "ImageNet/ImageNet_LT_test.txt"),
        how="put the list files of ImageNet-LT (Liu et al., 2019) beside ImageNet's own train and val folders",
    ),
    **_domains(
        "office",
        _OFFICE,
        "office_caltech_10",
        "amazon caltech dslr webcam",
        "unpack office_caltech_10 (Gong et al., 2012), one folder a domain, into data-root",
    ),
    **_domains(
        "pacs",
        _PACS,
        "PACS",
        "art_painting cartoon photo sketch",
        "unpack PACS (Li et al., 2017), one folder a domain, into data-root/PACS",
    ),
    **_domains(
        "domainnet",
        _DOMAINNET,
        "DomainNet",
        "clipart infograph painting quickdraw real sketch",
        "unpack {domain}.zip of DomainNet (Peng et al., 2019), with its two list files, into data-root/DomainNet",
    ),
    "abide-nyu": _abide("NYU"),
    "abide-um-1": _abide("UM_1"),
    "abide-usm": _abide("USM"),
    "abide-ucla-1": _abide("UCLA_1"),
}


def _family(family: str) -> tuple[str, ...]:
    return tuple(name for name, known in KNOWN.items() if known.family == family)


ALIASES = {
    "digits-five": ("mnist", "svhn", "usps", "synthdigits", "mnist-m"),
    "office-caltech10": _family("office"),
    "pacs": _family("pacs"),
    "domainnet": _family("domainnet"),
    "abide": _family("abide"),
    "digits-scanners": _family("scanners"),
}
"""Names for sets of domains, those of the papers in the papers' order."""

DOMAINS_PREFIX = "domains:"
OWN_PREFIXES = ("npz:", "folder:", "csv:", "medmnist:", "hf:")
SITES_PREFIX = "sites:"
NOT_SAVED = "must be a folder that datasets.load_dataset(NAME).save_to_disk(FOLDER) has written"
"""What is said of an hf:FOLDER that is none, or a data set's name."""


def is_own(name: str) -> bool:
    """Whether `name` is a user's own file or folder."""
    return name.startswith(OWN_PREFIXES)


def own_path(name: str, data_root: str = "") -> Path:
    """The file or folder of KIND:PATH; a relative path is below data-root, if that is set."""
    return Path(data_root).expanduser() / Path(name.split(":", 1)[1]).expanduser()


def labels_file(labels: str, data_root: str = "") -> Path | None:
    """The table that the setting `labels` names; None where it is the keyword of a DICOM element, or empty.

    A keyword is letters and digits alone, so that a dot or a slash tells a file. A relative path is as in `dataset`.
    """
    if "." in labels or "/" in labels:
        return own_path(f"csv:{labels}", data_root)
    return None


def is_sites(dataset: str) -> bool:
    """Whether `dataset` is sites:FILE, data that the server never sees."""
    return dataset.startswith(SITES_PREFIX)


def has_domains(dataset: str) -> bool:
    """Whether `dataset` is several domains."""
    return dataset.startswith(DOMAINS_PREFIX) or dataset in ALIASES


def members(dataset: str) -> tuple[str, ...]:
    """The data sets that `dataset` is made of: its domains in order, or itself alone.

    Raises:
        SettingError: quotes in the list of domains that do not end.
    """
    if dataset in ALIASES:
        return ALIASES[dataset]
    if has_domains(dataset):
        try:
            return names_in(dataset.removeprefix(DOMAINS_PREFIX))
        except ValueError:
            raise SettingError("dataset", dataset, NAMES_RULE) from None
    return (dataset,)


def domain_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of domains: a user's own have their file's name, or their path if two have the same name."""
    short = [Path(name.split(":", 1)[1]).stem if is_own(name) else name for name in names]
    if len(set(short)) == len(short):
        return tuple(short)
    return tuple(name.replace("/", "_") for name in names)
