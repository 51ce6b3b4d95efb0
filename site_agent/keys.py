"""A site's two keys: the node key, which identifies it, and the mask key, which its masks in sums are made of."""

import os
from collections.abc import Callable
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from data import DataError
from data.agreement import mask_key_text


def make_key(path: Path) -> str:
    """Write a new private key (ECDSA P-384, OpenSSH's format, for its owner alone) and return the public one.

    Raises:
        DataError: the file is there already.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(path, key, serialization.PrivateFormat.OpenSSH)
    return public_text(key.public_key())


def make_mask_key(path: Path) -> str:
    """Write a new private key for masked sums (X25519, PKCS 8, for its owner alone) and return the public one.

    Raises:
        DataError: the file is there already.
    """
    key = X25519PrivateKey.generate()
    write_private(path, key, serialization.PrivateFormat.PKCS8)
    return mask_key_text(key.public_key())


def write_private(
    path: Path,
    key: ec.EllipticCurvePrivateKey | X25519PrivateKey,
    form: serialization.PrivateFormat,
) -> None:
    """Write a new key's file for its owner alone. Raises DataError where it is there already."""
    pem = serialization.Encoding.PEM
    content = key.private_bytes(pem, form, serialization.NoEncryption())
    try:
        # Made with its rights, so that at no moment another user can open it.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    except FileExistsError:
        raise DataError("is there already; a key is never overwritten", where=str(path)) from None


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the node key in a file.

    Raises:
        DataError: no such file, one that others may read, or a key of another kind.
    """
    key = loaded(path, "node key", serialization.load_ssh_private_key)
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP384R1):
        return key
    rule = "must be an ECDSA P-384 key in OpenSSH's format without a password, as `fedskew-site key` makes it"
    raise DataError(rule, where=str(path))


def read_mask_key(path: Path) -> X25519PrivateKey:
    """Return the private key for masked sums in a file.

    Raises:
        DataError: no such file, one that others may read, or a key of another kind.
    """
    key = loaded(path, "mask key", serialization.load_pem_private_key)
    if isinstance(key, X25519PrivateKey):
        return key
    rule = "must be an X25519 key without a password, as `fedskew-site key` makes it"
    raise DataError(rule, where=str(path))


def loaded(path: Path, what: str, load: Callable[[bytes, None], object]) -> object:
    """Return what `load` makes of a key's file without a password; None where it cannot. Raises as `read_private`."""
    content = read_private(path, what)
    try:
        return load(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None


def read_private(path: Path, what: str, others: str = "go") -> bytes:
    """Return the content of a secret file. Raises DataError where it cannot be read, or others have rights on it.

    `others` are these, as chmod names them: o leaves the file to a group.
    """
    try:
        mode = path.stat().st_mode
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"the {what} cannot be read: {error.strerror}", where=str(path)) from None
    if mode & {"go": 0o077, "o": 0o007}[others]:
        rule = f"others have rights on it (mode {mode & 0o777:o}); chmod {others}= {path}"
        raise DataError(rule, where=str(path))
    return content


def public_text(key: ec.EllipticCurvePublicKey) -> str:
    """Return a public key as federation.toml has it: ecdsa-sha2-nistp384 and its base64, without a comment."""
    openssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_bytes(*openssh).decode()
