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
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from pydantic import AfterValidator, Field, PrivateAttr, Strict, model_validator

from data.errors import SettingError
from data.settings import DataSettings
from data.text import PACKAGES, name_list
from data.toml_file import BrokenRule, Numbers, Texts, TomlTable, matching, read_toml, table_of

INPUT_KEYS = ("classes", "input-shape", "input-columns", "mean", "std")
"""What FedSkew's app reads of the data; a federation of another Flower app may leave out all five."""
MOST_SAMPLES = 10**9
"""Training samples that a client may state at most, whatever is agreed: no hospital has a billion images."""
SHA256 = re.compile(r"[0-9a-f]{64}")
KEY_KIND = "ecdsa-sha2-nistp384"
MASK_KEY_KIND = "x25519"
FEWEST_MASKED = 3
"""Sites of a masked sum: with two, each has the other's part once it gets the sum."""


def checked_key(stated: str) -> str:
    """Return an ECDSA P-384 public key in OpenSSH's form without its comment. Raises ValueError for another kind."""
    kind, _, rest = stated.strip().partition(" ")
    base64_form = rest.split(" ")[0]  # a comment follows it
    text = f"{kind} {base64_form}"
    try:
        key = load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    # The text states a kind and the key has one: both must be the same.
    is_p384 = isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP384R1)
    if kind != KEY_KIND or not is_p384:
        raise ValueError(
            f"must be a node's public key: {KEY_KIND} and its base64 form, as `fedskew-site key` prints it"
        )
    return text


def checked_mask_key(stated: str) -> str:
    """Return a site's key for masked sums. Raises ValueError for what is no X25519 key."""
    try:
        # With a key of low order every shared secret is the same: cryptography refuses it here.
        X25519PrivateKey.generate().exchange(mask_public(stated))
    except ValueError:
        rule = f"must be a key for masked sums: {MASK_KEY_KIND} and its base64 form"
        raise ValueError(f"{rule}, as `fedskew-site key` prints it") from None
    return stated


def free_name(name: str) -> str:
    """Return the name of a module. Raises ValueError for one that an import would not find, or another module's."""
    if keyword.iskeyword(name) or not re.fullmatch(r"[a-z][a-z0-9_]{0,59}", name):
        rule = "must be the name of a Python module: small letters, digits and _"
        raise ValueError(f"{rule}, such as hospital_net")
    if name in sys.stdlib_module_names or name in (*PACKAGES, "site_agent"):
        raise ValueError("is the name of another module: rename yours")
    return name


def names_once(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return names as the setting `classes`, and headers of tables, have them. Raises ValueError for others."""
    if any(name != name.strip() or not name for name in names):
        raise ValueError("must be names without spaces around")
    if len(set(names)) < len(names):
        raise ValueError("must name each once")
    return names


Names = Annotated[Texts, AfterValidator(names_once)]
Name = Annotated[
    str,
    matching(
        re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}"), "must be 1 to 40 letters, digits, - and _"
    ),
]
FileHash = Annotated[str, matching(SHA256, "must be a sha256: 64 of 0-9 and a-f")]
PublicKey = Annotated[str, AfterValidator(checked_key)]


class Member(TomlTable):
    """A site as the agreement names it."""

    name: Name
    key: PublicKey
    """Its node's public key in OpenSSH's form, without a comment."""
    samples: Annotated[int, Field(ge=1, le=MOST_SAMPLES)] = 0
    """Training samples that it may state at most; 0 where none are agreed. A mean of models weighs a site by them."""
    mask_key: Annotated[str, AfterValidator(checked_mask_key)] = ""
    """Its X25519 public key for masked sums, `x25519` and base64; empty where the file has none."""


class Module(TomlTable):
    """The module with the federation's own models and methods, which every site has as a file."""

    name: Annotated[str, AfterValidator(free_name)]
    sha256: FileHash
    """Of that file."""


class AgreedInputs(TomlTable):
    """The federation's name and its model's inputs and classes."""

    name: Name
    classes: Names = ()
    """In order. Empty, as shape, mean and std, where another Flower app's federation does not state its inputs."""
    input_shape: str = ""
    input_columns: Names = ()
    """The names of a table's input columns in order; empty for images, and where the file has none."""
    mean: Numbers = ()
    """One value, or one a channel, on the scale 0..1. () of vectors whose columns' sums over all sites decide."""
    std: Numbers = ()

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """(C, H, W), or (F,) for vectors; () where the file has none."""
        return DataSettings(input_shape=self.input_shape).shape if self.input_shape else ()

    @model_validator(mode="after")
    def check_inputs(self) -> Self:
        """Raise BrokenRule for inputs that the settings cannot state, or that do not fit each other."""
        stated = {key for key in INPUT_KEYS if key.replace("-", "_") in self.model_fields_set}
        if not stated:
            return self
        # A table's columns are standardized by their sums over all sites where neither is there.
        by_sums = "x" not in self.input_shape.lower() and stated.isdisjoint(("mean", "std"))
        optional = ("input-columns", "mean", "std") if by_sums else ("input-columns",)
        for key in INPUT_KEYS:
            if key not in stated and key not in optional:
                raise BrokenRule(key, "is missing")
        if len(self.classes) < 2:
            raise BrokenRule("classes", "must be at least two names")
        settings = DataSettings(classes=name_list(self.classes), input_shape=self.input_shape)
        try:
            shape = settings.shape
            _ = settings.class_names
        except SettingError as error:
            raise BrokenRule(error.key, error.rule) from None
        rule = f"must be one value, or {shape[0]}, for input-shape {self.input_shape}"
        for key, values in (("mean", self.mean), ("std", self.std)):
            if not by_sums and len(values) not in (1, shape[0]):
                raise BrokenRule(key, rule)
        if any(value <= 0 for value in self.std):
            raise BrokenRule("std", "must be greater than 0")
        if "input-columns" in stated and shape != (len(self.input_columns),):
            rule = f"must be one name per column of a table, and input-shape = {self.input_shape}"
            raise BrokenRule("input-columns", rule)
        return self


class AgreedSites(TomlTable):
    """The sites of a federation, which may be too few yet."""

    sites: Annotated[tuple[Member, ...], Strict(False)] = Field(alias="site")

    @model_validator(mode="after")
    def check_keys(self) -> Self:
        """Raise BrokenRule for sites that cannot be told apart."""
        for key in ("name", "key", "mask_key"):
            values = [getattr(site, key) for site in self.sites]
            for value in filter(None, values):
                if values.count(value) > 1:
                    raise BrokenRule(key.replace("_", "-"), "must be one site's", value)
        return self


class Agreement(AgreedInputs, AgreedSites):
    """federation.toml's contents; the sites' order gives them their numbers."""

    app: FileHash
    """sha256 over the sorted (name, sha256 of content) of the app's files."""
    min_sites: int
    """Sites without whose updates no round is taken."""
    sums: Literal["plain", "masked"] = "plain"
    """How class counts and feature statistics leave the sites: each by itself, or under masks that cancel."""
    backbone: Annotated[
        str,
        matching(
            re.compile(r"[A-Za-z0-9_.:/-]{1,100}"),
            "must be the name of a network, such as torchvision:resnet18",
        ),
    ] = ""
    """The network whose weights every site has as a file; empty where none is agreed. Whether there is one of this name
    the coordinator's settings say."""
    weights: FileHash = ""
    """sha256 of that file."""
    own_module: Module | None = Field(default=None, alias="module")
    run_key: PublicKey = ""
    """The public key that signs runs; without one the sites take every run of the SuperLink."""
    _sha256: str = PrivateAttr(default="")

    @model_validator(mode="before")
    @classmethod
    def usual(cls, entries: dict[str, Any]) -> dict[str, Any]:
        """Add min-sites, more than half of the sites, and sums, masked where three or more sites have keys for it."""
        sites = entries.get("site")
        tables = sites if isinstance(sites, list) else []
        keyed = [table for table in tables if isinstance(table, dict) and "mask-key" in table]
        masked = bool(keyed) and len(tables) >= FEWEST_MASKED
        usual = {
            "min-sites": len(tables) // 2 + 1,
            "sums": "masked" if masked else "plain",
        }
        return {**usual, **entries}

    @model_validator(mode="after")
    def check_sites(self) -> Self:
        """Raise BrokenRule for what these sites cannot do together."""
        if self.run_key in [site.key for site in self.sites]:
            raise BrokenRule("run-key", "is a site's key as well")
        if self.min_sites < 2:
            rule = "must be at least 2: an update must never be alone in a mean"
            raise BrokenRule("min-sites", rule, self.min_sites)
        if self.min_sites > len(self.sites):
            rule = f"must be at most the number of sites, {len(self.sites)}"
            raise BrokenRule("min-sites", rule, self.min_sites)
        if self.masked and len(self.sites) < FEWEST_MASKED:
            rule = f"must be plain with fewer than {FEWEST_MASKED} sites: each would learn the other's part"
            raise BrokenRule("sums", rule)
        without = ", ".join(site.name for site in self.sites if not site.mask_key)
        if self.masked and without:
            rule = f'needs a mask-key of site {without}. Add it, or state sums = "plain"'
            raise BrokenRule("sums", rule)
        if bool(self.backbone) != bool(self.weights):
            raise BrokenRule("weights" if self.backbone else "backbone", "is missing")
        return self

    @property
    def sha256(self) -> str:
        """Of the file's bytes."""
        return self._sha256

    @property
    def module(self) -> str:
        """The name of the federation's own module; empty without one."""
        return self.own_module.name if self.own_module else ""

    @property
    def module_sha256(self) -> str:
        """sha256 of the module's file."""
        return self.own_module.sha256 if self.own_module else ""

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
    """Return what the masked sums of two federations tell together: of the sites that only one of them has.

    Empty where the sites are the same, or one of the two has no masked sums.
    """
    keys_before = {site.key for site in before.sites}
    keys_after = {site.key for site in after.sites}
    changes = [f"{site.name} joins" for site in after.sites if site.key not in keys_before]
    changes += [f"{site.name} leaves" for site in before.sites if site.key not in keys_after]
    if not changes or not (before.masked and after.masked):
        return ""
    whose = "its" if len(changes) == 1 else "their joint"
    return (
        f"{', '.join(changes)}: masked sums of both federations differ by no other site, so whoever has both "
        f"learns {whose} class counts and feature statistics by subtraction"
    )


def read_agreement(path: Path) -> Agreement:
    """Return what federation.toml says. Raises DataError, one sentence, for one that cannot be agreed to."""
    content, entries = read_toml(path)
    agreement = table_of(Agreement, entries, str(path))
    agreement._sha256 = hashlib.sha256(content).hexdigest()
    return agreement


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
