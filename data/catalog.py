"""What is known of each named data set before a byte of it is read: classes, shape, normalization, where it lies."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """A data set that can be asked for by name."""

    class_names: tuple[str, ...]
    shape: tuple[int, int, int]
    """Channels, height, width."""
    mean: tuple[float, ...]
    """Of each channel, on the scale 0..1."""
    std: tuple[float, ...]
    """Of each channel, on the scale 0..1."""
    torchvision_class: str = ""
    """Name in torchvision.datasets; empty where torchvision has none."""
    torchvision_root: str = ""
    """What torchvision calls root, below data-root."""
    torchvision_files: tuple[str, ...] = ()
    """Patterns, below data-root, of the files that torchvision reads; all must be there."""


_DIGITS = tuple(str(digit) for digit in range(10))
_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
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

KNOWN: dict[str, Known] = {
    "digits": Known(_DIGITS, (1, 8, 8), (0.5,), (0.5,)),
    "mnist": Known(
        _DIGITS, (1, 28, 28), (0.1307,), (0.3081,), "MNIST", "", tuple(f"MNIST/raw/{file}" for file in _IDX)
    ),
    # IWDS only divides by 255; these are the training pixels' own mean and standard deviation.
    "fashion-mnist": Known(
        ("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        (1, 28, 28),
        (0.2860,),
        (0.3530,),
        "FashionMNIST",
        "",
        tuple(f"FashionMNIST/raw/{file}" for file in _IDX),
    ),
    # The training pixels' own, as torchvision decodes them.
    "usps": Known(_DIGITS, (1, 16, 16), (0.2539,), (0.3842,), "USPS", "USPS", ("USPS/usps.bz2", "USPS/usps.t.bz2")),
    "cifar10": Known(
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        (3, 32, 32),
        _CIFAR_MEAN,
        _CIFAR_STD,
        "CIFAR10",
        "",
        ("cifar-10-batches-py/*",),
    ),
    "cifar100": Known(
        tuple(_CIFAR100.split()), (3, 32, 32), _CIFAR_MEAN, _CIFAR_STD, "CIFAR100", "", ("cifar-100-python/*",)
    ),
    # FedBN (Li et al., 2021) normalizes every domain with .5/.5; torchvision has no class for it.
    "mnist-m": Known(_DIGITS, (3, 32, 32), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}

DOMAINS_PREFIX = "domains:"
OWN_PREFIXES = ("npz:", "folder:")
DOMAINS_SHAPE = (3, 28, 28)
"""FedBN brings every digit domain to three channels of 28 x 28."""


def is_own(name: str) -> bool:
    """Whether `name` is a user's own file or folder."""
    return name.startswith(OWN_PREFIXES)


def has_domains(dataset: str) -> bool:
    """Whether `dataset` is several domains."""
    return dataset.startswith(DOMAINS_PREFIX)


def members(dataset: str) -> tuple[str, ...]:
    """The data sets that `dataset` is made of: its domains in order, or itself alone."""
    if has_domains(dataset):
        return tuple(entry.strip() for entry in dataset.removeprefix(DOMAINS_PREFIX).split(","))
    return (dataset,)
