"""The coordinator's key: it signs runs, and the sites take no other where federation.toml has its public half.

It is needed by who starts runs, and by nothing on the SuperLink's machine: it may be on another machine.
"""

import base64
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from client_app.local_site import RUN_SIGNATURE
from data import DataError
from data.agreement import Agreement
from fedskew.federation.certificates import pem, write_private
from site_agent.keys import public_text, read_private
from site_agent.run_approval import ALGORITHM, signed_app_text, signed_text

DECLARED = f'{RUN_SIGNATURE} = ""'
"""The line under [tool.flwr.app.config] without which flwr passes no signature to an app."""


def make_key(path: Path) -> str:
    """Write a new key (ECDSA P-384) for its owner alone, and return its public half as federation.toml has it.

    Raises DataError where there is a file already.
    """
    if path.exists():
        raise DataError("is there already; a key is never overwritten", where=str(path))
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(path, pem(key))
    return public_text(key.public_key())


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the key in a file. Raises DataError for a file that is missing, open to others, or of another kind."""
    if not path.exists():
        reason = "there is no such key, and federation.toml has a run-key"
        remedy = "name the key's file with --coordinator-key"
        raise DataError(reason, where=str(path), remedy=remedy)
    content = read_private(path, "coordinator's key")
    rule = "must be an ECDSA P-384 key, as `fedskew federation new` makes it"
    try:
        key = serialization.load_pem_private_key(content, None)
    except (ValueError, TypeError):
        raise DataError(rule, where=str(path)) from None
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP384R1):
        return key
    raise DataError(rule, where=str(path))


def sign_run(agreement: Agreement, settings: str, path: Path) -> str:
    """Return the signature of a run of FedSkew's app, in base64.

    Args:
        agreement: the run's.
        settings: the run's, the JSON text that every message will hold.
        path: the key's file.

    Raises:
        DataError: the file has no key, or another than federation.toml's run-key.
    """
    return signature(agreement, signed_text(agreement.sha256, settings), path)


def sign_app_run(
    agreement: Agreement,
    sites: Sequence[str],
    config: Mapping[str, Any],
    path: Path,
) -> str:
    """Return what signs a run of another Flower app: its sites, separated by commas, and the signature.

    Args:
        agreement: of the federation.
        sites: the names of those that take part.
        config: the run config as the app gets it, defaults included, without RUN_SIGNATURE.
        path: the key's file.

    Raises:
        DataError: as `sign_run`.
    """
    text = signed_app_text(agreement.sha256, sites, config)
    return f"{','.join(sites)} {signature(agreement, text, path)}"


def signature(agreement: Agreement, text: bytes, path: Path) -> str:
    """Return a text's signature in base64. Raises DataError for a key that is not the agreement's run-key."""
    key = read_key(path)
    if public_text(key.public_key()) != agreement.run_key:
        raise DataError(
            "is not the key whose public half is run-key in federation.toml", where=str(path)
        )
    return base64.b64encode(key.sign(text, ALGORITHM)).decode()


def takes_signature(files: Mapping[str, bytes]) -> bool:
    """Return whether an app's run config has a place for the signature; flwr refuses a key that it does not declare."""
    try:
        table = tomllib.loads(files["pyproject.toml"].decode())
        return RUN_SIGNATURE in table["tool"]["flwr"]["app"]["config"]
    except (LookupError, ValueError, TypeError):
        return False
