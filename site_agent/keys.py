"""The node key, which identifies a site."""

import os
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from data import DataError


def make_key(path: Path) -> str:
    """Write a new private key (ECDSA P-384, OpenSSH's format, for its owner alone) and return the public one.

    Raises:
        DataError: the file is there already, or cannot be written.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    form = (
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key.private_bytes(*form))
    except FileExistsError:
        raise DataError("is there already; a key is never overwritten", where=str(path)) from None
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror}", where=str(path)) from None
    return public_text(key.public_key())


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the private key in a file.

    Raises:
        DataError: no such file, one that others may read, or a key of another kind.
    """
    try:
        mode = path.stat().st_mode
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"the node key cannot be read: {error.strerror}", where=str(path)) from None
    if mode & 0o077:
        raise DataError(
            f"others may read this key (mode {mode & 0o777:o}); chmod 600 {path}", where=str(path)
        )
    try:
        key = serialization.load_ssh_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise DataError(
            "must be a private key in OpenSSH's format without a password", where=str(path)
        ) from None
    if not (isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP384R1)):
        raise DataError(
            "must be an ECDSA P-384 key, as `fedskew-site key` makes it", where=str(path)
        )
    return key


def public_text(key: ec.EllipticCurvePublicKey) -> str:
    """Return a public key as federation.toml has it: ecdsa-sha2-nistp384 and its base64, without a comment."""
    return key.public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    ).decode()
