"""federation.toml: the one text that all parties of a federation agree to.

Its sha256 stands for it everywhere: in a run's id and settings.json, and in every message, where a site compares it
with that of the text it has approved.
"""

import base64
import binascii
import hashlib
import keyword
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from data.errors import DataError, SettingError
from data.settings import DataSettings
from data.text import PACKAGES, name_list
from data.toml_file import Table, read_toml

KEYS = (
    "name",
    "classes",
    "input-shape",
    "input-columns",
    "mean",
    "std",
    "min-sites",
    "run-key",
    "sums",
    "backbone",
    "weights",
    "module",
    "app",
    "site",
)
INPUT_KEYS = ("classes", "input-shape", "input-columns", "mean", "std")
"""What FedSkew's app reads of the data; a federation of another Flower app may leave out all five."""
SITE_KEYS = ("name", "key", "mask-key", "samples")
MOST_SAMPLES = 10**9
"""Training samples that a client may state at most, whatever is agreed: no hospital has a billion images."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
NAME_RULE = "must be 1 to 40 letters, digits, - and _"
SHA256 = re.compile(r"[0-9a-f]{64}")
BACKBONE = re.compile(r"[A-Za-z0-9_.:/-]{1,100}")
"""The name of a network that begins with a file's weights; whether there is one the coordinator's settings say."""
MODULE_KEYS = ("name", "sha256")
MODULE_NAME = re.compile(r"[a-z][a-z0-9_]{0,59}")
KEY_KIND = "ecdsa-sha2-nistp384"
MASK_KEY_KIND = "x25519"
SUMS = ("plain", "masked")
"""How class counts and feature statistics leave the sites: each by itself, or under masks that cancel in the sum."""
FEWEST_MASKED = 3
"""Sites of a masked sum: with two, each has the other's part once it gets the sum."""


@dataclass(frozen=True)
class Member:
    """A site as the agreement names it."""

    name: str
    key: str
    """Its node's public key in OpenSSH's form, without a comment."""
    samples: int = 0
    """Training samples that it may state at most; 0 where none are agreed. A mean of models weighs a site by them."""
    mask_key: str = ""
    """Its X25519 public key for masked sums, `x25519` and base64; empty where the file has none."""


@dataclass(frozen=True)
class Agreement:
    """federation.toml's contents; the sites' order gives them their numbers."""

    name: str
    classes: tuple[str, ...]
    """In order. Empty, as shape, mean and std, where another Flower app's federation does not state its inputs."""
    shape: tuple[int, ...]
    """(C, H, W), or (F,) for vectors."""
    mean: tuple[float, ...]
    """One value, or one a channel, on the scale 0..1. () of vectors whose columns' sums over all sites decide."""
    std: tuple[float, ...]
    min_sites: int
    """Sites without whose updates no round is taken."""
    app: str
    """sha256 over the sorted (name, sha256 of content) of the app's files."""
    sites: tuple[Member, ...]
    sha256: str
    """Of the file's bytes."""
    sums: str = "plain"
    """One of SUMS."""
    backbone: str = ""
    """The network whose weights every site has as a file; empty where none is agreed."""
    weights: str = ""
    """sha256 of that file."""
    module: str = ""
    """The module with the federation's own models and methods, which every site has as a file; empty without one."""
    module_sha256: str = ""
    """sha256 of that file."""
    input_columns: tuple[str, ...] = ()
    """The names of a table's input columns in order; empty for images, and where the file has none."""
    run_key: str = ""
    """The public key that signs runs, in OpenSSH's form; without one the sites take every run of the SuperLink."""

    @property
    def weights_in_messages(self) -> str:
        """How messages name the file of the backbone's weights: without a path."""
        return f"sha256:{self.weights}"

    @property
    def masked(self) -> bool:
        """Whether class counts and feature statistics leave a site under masks alone."""
        return self.sums == "masked"

    @property
    def names(self) -> list[str]:
        """The sites' names, by number."""
        return [site.name for site in self.sites]

    @property
    def without_samples(self) -> list[str]:
        """The names of the sites for which no largest number of samples is agreed."""
        return [site.name for site in self.sites if not site.samples]

    def number(self, name: str) -> int:
        """Return a site's number. Raises LookupError for a site that is none of the agreement's."""
        if name not in self.names:
            raise LookupError(
                f"is no site of federation {self.name}, whose sites are {', '.join(self.names)}"
            )
        return self.names.index(name)


def subtraction_warning(before: Agreement, after: Agreement) -> str:
    """Return what the masked sums of two federations tell together: of a single site that only one of them has.

    Empty where the sites are the same, or one of the two has no masked sums.
    """
    keys_before = {site.key for site in before.sites}
    keys_after = {site.key for site in after.sites}
    joining = [site.name for site in after.sites if site.key not in keys_before]
    leaving = [site.name for site in before.sites if site.key not in keys_after]
    if not (before.masked and after.masked) or not (joining or leaving):
        return ""
    changes = []
    for names, word in ((joining, "joins"), (leaving, "leaves")):
        changes += [f"{name} {word}" for name in names]
    change = f"{', '.join(changes)}: masked sums of both federations differ by "
    if len(changes) == 1:
        (name,) = joining or leaving
        return (
            f"{change}{name} alone, so whoever has both learns its class counts and feature "
            "statistics by subtraction"
        )
    return f"{change}these sites alone, so whoever has both learns what they have together by subtraction"


@dataclass(frozen=True)
class AgreedInputs:
    """The federation's name and its model's inputs and classes; read_agreement explains each field."""

    name: str
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    columns: tuple[str, ...] = ()


def agreed_inputs(entries: Mapping[str, object], path: Path) -> AgreedInputs:
    """Return the name, classes, shape and scale of federation.toml.

    They can be checked before the first site is known, so that no coordinator writes a file that none can read.

    Args:
        entries: of the file.
        path: of the file, which errors name.

    Raises:
        DataError: one of them is missing, or none that can be agreed to.
    """
    table = Table(entries, str(path), KEYS)
    name = table.take("name", str)
    table.require(NAME.fullmatch(name) is not None, "name", NAME_RULE)
    if entries.keys().isdisjoint(INPUT_KEYS):
        return AgreedInputs(name, (), (), (), ())
    classes = table.texts("classes")
    columns = table.texts("input-columns", [])
    # The setting `classes` cuts spaces off.
    as_settings_have_them = all(text == text.strip() for text in classes)
    table.require(as_settings_have_them, "classes", "must be without spaces around")
    shape_text = table.take("input-shape", str)
    # A table's columns are standardized by their sums over all sites where neither is there.
    by_sums = "x" not in shape_text.lower() and entries.keys().isdisjoint(("mean", "std"))
    mean = () if by_sums else table.numbers("mean")
    std = () if by_sums else table.numbers("std")
    table.require(len(classes) >= 2, "classes", "must be at least two names")
    try:
        settings = DataSettings(
            classes=name_list(classes),
            input_shape=shape_text,
            mean=",".join(map(str, mean)),
            std=",".join(map(str, std)),
        )
        shape = settings.shape
        inputs = AgreedInputs(
            name, settings.class_names, shape, settings.means, settings.stds, columns
        )
    except SettingError as error:
        raise DataError(error.rule, where=str(path), key=error.key, value=error.value) from None
    rule = f"must be one value, or {shape[0]}, for input-shape {'x'.join(map(str, shape))}"
    table.require(by_sums or len(inputs.mean) in (1, shape[0]), "mean", rule)
    table.require(by_sums or len(inputs.std) in (1, shape[0]), "std", rule)
    table.require(all(value > 0 for value in inputs.std), "std", "must be greater than 0")
    if "input-columns" in entries:
        rule = f"must be one name per column of a table, and input-shape = {shape_text}"
        table.require(shape == (len(columns),), "input-columns", rule)
        are_names = all(text and text == text.strip() for text in columns)
        rule = "must be names without spaces around, as headers of tables are read"
        table.require(are_names, "input-columns", rule)
    return inputs


def read_agreement(path: Path) -> Agreement:
    """Return what federation.toml says. Raises DataError, one sentence, for one that cannot be agreed to."""
    content, entries = read_toml(path)
    inputs = agreed_inputs(entries, path)
    table = Table(entries, str(path), KEYS)
    app = table.take("app", str)
    table.require(SHA256.fullmatch(app) is not None, "app", "must be a sha256: 64 of 0-9 and a-f")
    sites = members_of(table, path)
    majority = len(sites) // 2 + 1
    min_sites = table.take("min-sites", int, majority)
    if min_sites < 2:
        rule = "must be at least 2: an update must never be alone in a mean"
        raise table.error("min-sites", min_sites, rule)
    if min_sites > len(sites):
        rule = f"must be at most the number of sites, {len(sites)}"
        raise table.error("min-sites", min_sites, rule)
    sums = sums_of(table, sites)
    backbone, weights = backbone_of(table)
    module, module_sha256 = module_of(table)
    run_key = run_key_of(table, sites)
    return Agreement(
        name=inputs.name,
        classes=inputs.classes,
        shape=inputs.shape,
        input_columns=inputs.columns,
        mean=inputs.mean,
        std=inputs.std,
        min_sites=min_sites,
        app=app,
        sites=sites,
        sha256=hashlib.sha256(content).hexdigest(),
        sums=sums,
        backbone=backbone,
        weights=weights,
        module=module,
        module_sha256=module_sha256,
        run_key=run_key,
    )


def backbone_of(table: Table) -> tuple[str, str]:
    """Return the agreed backbone and the sha256 of its weights, two empty texts where none is agreed.

    Raises DataError for one without the other, and for what can be neither.
    """
    if not table.entries.keys() & {"backbone", "weights"}:
        return "", ""
    backbone: str = table.take("backbone", str)
    weights: str = table.take("weights", str)
    rule = "must be the name of a network, such as torchvision:resnet18"
    table.require(BACKBONE.fullmatch(backbone) is not None, "backbone", rule)
    rule = "must be the sha256 of the file of the backbone's weights: 64 of 0-9 and a-f"
    table.require(SHA256.fullmatch(weights) is not None, "weights", rule)
    return backbone, weights


def module_of(table: Table) -> tuple[str, str]:
    """Return the name of the agreed module and the sha256 of its file, two empty texts where none is agreed.

    Raises DataError for a name that an import would not find, or that means another module.
    """
    if "module" not in table.entries:
        return "", ""
    module = Table(table.take("module", dict), f"{table.where}: module", MODULE_KEYS)
    name: str = module.take("name", str)
    is_name = MODULE_NAME.fullmatch(name) is not None and not keyword.iskeyword(name)
    rule = "must be the name of a Python module: small letters, digits and _, such as hospital_net"
    module.require(is_name, "name", rule)
    is_free = name not in sys.stdlib_module_names and name not in (*PACKAGES, "site_agent")
    module.require(is_free, "name", "is the name of another module: rename yours")
    sha256: str = module.take("sha256", str)
    rule = "must be the sha256 of the module's file: 64 of 0-9 and a-f"
    module.require(SHA256.fullmatch(sha256) is not None, "sha256", rule)
    return name, sha256


def sums_of(table: Table, sites: Sequence[Member]) -> str:
    """Return how sums leave the sites: what the file says, or masked where three or more sites all have a mask-key.

    Without any mask-key sums stay plain. Raises DataError for masks that some site cannot make.
    """
    without = [site.name for site in sites if not site.mask_key]
    listed = ", ".join(without)
    enough_sites = len(sites) >= FEWEST_MASKED

    sums: str = table.take("sums", str, "")
    if not sums:
        some_without = 0 < len(without) < len(sites)
        rule = f'is missing: site {listed} has no mask-key. Add it, or state sums = "plain"'
        table.require(not some_without, "sums", rule)
        return "masked" if not without and enough_sites else "plain"

    table.require(sums in SUMS, "sums", f"must be one of {', '.join(SUMS)}")
    if sums == "masked":
        rule = f"must be plain with fewer than {FEWEST_MASKED} sites: each would learn the other's part"
        table.require(enough_sites, "sums", rule)
        table.require(not without, "sums", f"needs a mask-key of site {listed}")
    return sums


def members_of(table: Table, path: Path) -> tuple[Member, ...]:
    """Return the sites of [[site]]. Raises DataError for a site or a key that is there twice, or a key of no node."""
    sites: list[Member] = []
    for entry in table.take("site", list):
        number = len(sites) + 1
        table.require(type(entry) is dict, "site", "must be tables [[site]]")
        site = Table(entry, f"{path}: site {number}", SITE_KEYS)
        name = site.take("name", str)
        key = public_key(site)
        site.require(NAME.fullmatch(name) is not None, "name", NAME_RULE)
        site.require(name not in [other.name for other in sites], "name", "is another site's")
        site.require(key not in [other.key for other in sites], "key", "is another site's")
        samples = site.take("samples", int, 0)
        if "samples" in site.entries:
            rule = f"must be 1 to {MOST_SAMPLES}: training samples that the site may state at most"
            site.require(1 <= samples <= MOST_SAMPLES, "samples", rule)
        mask_key = mask_key_of(site)
        taken = mask_key and mask_key in [other.mask_key for other in sites]
        site.require(not taken, "mask-key", "is another site's")
        sites.append(Member(name, key, samples, mask_key))
    return tuple(sites)


def public_key(site: Table) -> str:
    """Return the key of a site without its comment. Raises DataError for one of another kind than a node's."""
    rule = f"must be a node's public key: {KEY_KIND} and its base64 form, as `fedskew-site key` prints it"
    return ecdsa_key(site, "key", rule)


def run_key_of(table: Table, sites: Sequence[Member]) -> str:
    """Return the key that signs runs without its comment, or "" without one.

    Raises DataError for a key of another kind, and for a site's, which another machine has.
    """
    if "run-key" not in table.entries:
        return ""
    rule = f"must be a public key: {KEY_KIND} and its base64 form, as `fedskew federation new` writes it"
    key = ecdsa_key(table, "run-key", rule)
    table.require(key not in [site.key for site in sites], "run-key", "is a site's key as well")
    return key


def ecdsa_key(table: Table, entry: str, rule: str) -> str:
    """Return an entry's ECDSA P-384 public key without its comment. Raises DataError with `rule` for another kind."""
    stated = table.take(entry, str)
    kind, _, rest = stated.strip().partition(" ")
    base64_form = rest.split(" ")[0]  # a comment follows it
    text = f"{kind} {base64_form}"
    try:
        key = load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise table.error(entry, stated, rule) from None
    # The text states a kind and the key has one: both must be the same.
    is_p384 = isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP384R1)
    table.require(kind == KEY_KIND and is_p384, entry, rule)
    return text


def mask_key_of(site: Table) -> str:
    """Return a site's key for masked sums, or "" without one. Raises DataError for what is no X25519 key."""
    stated: str = site.take("mask-key", str, "")
    if "mask-key" not in site.entries:
        return ""
    rule = f"must be a key for masked sums: {MASK_KEY_KIND} and its base64 form, as `fedskew-site key` prints it"
    try:
        # With a key of low order every shared secret is the same: cryptography refuses it here.
        X25519PrivateKey.generate().exchange(mask_public(stated))
    except ValueError:
        raise site.error("mask-key", stated, rule) from None
    return stated


def mask_public(text: str) -> X25519PublicKey:
    """Return a key for masked sums from its text. Raises ValueError for what is none."""
    encoded = text.partition(" ")[2]
    try:
        raw = base64.b64decode(encoded, validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError("no base64") from error
    key = X25519PublicKey.from_public_bytes(raw)
    if mask_key_text(key) != text:
        raise ValueError("not written as `mask_key_text` writes it")
    return key


def mask_key_text(key: X25519PublicKey) -> str:
    """Return a key for masked sums as federation.toml has it."""
    return f"{MASK_KEY_KIND} {base64.b64encode(key.public_bytes_raw()).decode()}"


def as_flower_has_it(key: str) -> bytes:
    """Return a key in OpenSSH's form as flwr lists it with a node."""
    public_key = load_ssh_public_key(key.encode())
    return public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
