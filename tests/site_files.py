"""Folders of small sites for the tests: one federation.toml, and SITE/site.toml beside each site's own data."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from data.agreement import mask_key_text
from fedskew.federation.certificates import write_authority, write_server

NAMES = ("north", "east", "south")
CLASSES = ["healthy", "ill", "other"]
APP = "0" * 64
AGREED = {
    "name": "two",
    "classes": ["a", "b"],
    "input-shape": "1x8x8",
    "mean": [0.5],
    "std": [0.5],
}
"""What `fedskew.federation.folder.begin` writes of the data."""
Pair = tuple[Path, Path]
"""The files of a certificate and its key."""


@cache
def public_key(name: str) -> str:
    """Return a site's public key in OpenSSH's form, the same at every call."""
    number = int.from_bytes(name.encode().ljust(16, b"."), "big")
    key = ec.derive_private_key(number, ec.SECP384R1()).public_key()
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


@cache
def mask_key(name: str) -> X25519PrivateKey:
    """Return a site's private key for masked sums, the same at every call."""
    return X25519PrivateKey.from_private_bytes(name.encode().ljust(32, b"."))


def with_mask_keys(names: Sequence[str] = NAMES) -> list[dict[str, Any]]:
    """Return the [[site]] tables of sites that can mask."""
    return [
        {
            "name": name,
            "key": public_key(name),
            "mask-key": mask_key_text(mask_key(name).public_key()),
        }
        for name in names
    ]


def write_mask_key(path: Path, name: str) -> None:
    """Write a site's private key for masked sums, for its owner alone."""
    form = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.touch(0o600)
    path.write_bytes(mask_key(name).private_bytes(*form))


def certified(folder: Path, *hosts: str) -> tuple[Pair, Pair]:
    """Write an authority and a server's certificate of it in a new folder, and return the files of both."""
    folder.mkdir()
    authority = folder / "ca.crt", folder / "ca.key"
    server = folder / "server.crt", folder / "server.key"
    write_authority("four hospitals", *authority)
    write_server(hosts, authority, *server)
    return authority, server


def agreed(**changes: Any) -> dict[str, Any]:
    """Return what federation.toml says, with changes; keys with `_` for `-`."""
    sites = [{"name": name, "key": public_key(name)} for name in NAMES]
    usual = {
        "name": "chest",
        "classes": CLASSES,
        "input-shape": "1x8x8",
        "mean": [0.5],
        "std": [0.5],
        "app": APP,
    }
    return {
        **usual,
        "site": sites,
        **{key.replace("_", "-"): value for key, value in changes.items()},
    }


def write(path: Path, entries: Mapping[str, Any]) -> Path:
    """Write a TOML file and return its path; an entry that is None is left out."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        tomli_w.dumps({key: value for key, value in entries.items() if value is not None})
    )
    return path


def arrays(number: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return a site's arrays: images whose brightness tells the class, of another contrast at every site."""
    draws = np.random.default_rng(number)
    images: dict[str, np.ndarray[Any, Any]] = {}
    for key, samples in (("train", 24), ("test", 12)):
        labels = np.arange(samples) % len(CLASSES)
        noise = draws.integers(0, 40 + 20 * number, (samples, 8, 8))
        images |= {
            f"{key}_images": (60 * labels[:, None, None] + noise).astype(np.uint8),
            f"{key}_labels": labels,
        }
    return images


def site_entries(**changes: Any) -> dict[str, Any]:
    """Return what site.toml says, with changes."""
    return {
        "federation": "federation.toml",
        "name": "north",
        "data": "npz:data.npz",
        "state": "state",
        **changes,
    }


def site_folders(folder: Path, policy: Mapping[str, Any] | None = None, **changes: Any) -> Path:
    """Write FOLDER/federation.toml and FOLDER/SITE/: site.toml, the approved federation.toml, data.npz."""
    entries = agreed(**changes)
    write(folder / "federation.toml", entries)
    for number, site in enumerate(entries["site"]):
        place = folder / site["name"]
        write(place / "federation.toml", entries)
        write(place / "site.toml", site_entries(name=site["name"], policy=policy))
        np.savez(place / "data.npz", **arrays(number))  # type: ignore[arg-type]
        if "mask-key" in site:
            write_mask_key(place / "mask.key", site["name"])
    return folder


def data_sets(folder: Path) -> str:
    """Return the simulation's name for the same data: a domain a site."""
    return "domains:" + ",".join(f"npz:{folder}/{name}/data.npz" for name in NAMES)
