"""Signatures of runs: with a run-key in federation.toml a site takes only runs that the coordinator's key has signed.

Who holds the gateway and the SuperLink, and not that key, can neither start another run nor change one's settings. The
signature travels in flwr's run config, so no message has to carry it. It says nothing of the weights in the messages.
"""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from client_app.local_site import RUN_SIGNATURE, RunNotSigned, hash_of
from data.agreement import Agreement

LONGEST = 200
"""Characters of a signature that the audit log keeps; one of P-384 has at most 140."""
ALGORITHM = ECDSA(SHA384())
"""As P-384 is meant to be used (FIPS 186-5, SP 800-57)."""


def signed_text(federation: str, settings: str) -> bytes:
    """Return what is signed of a run of FedSkew's app.

    The first line keeps the signature from being one of anything else. The settings have the run's name in them.

    Args:
        federation: the sha256 of federation.toml.
        settings: the run's, the JSON text that every message holds.
    """
    return f"fedskew run\nfederation {federation}\nsettings {hash_of(settings)}\n".encode()


def check_signed(agreement: Agreement, settings: str, signature: str) -> None:
    """Check a run of FedSkew's app.

    Args:
        agreement: with the key that signs runs; without one there is nothing to check.
        settings: the run's, as the message holds them.
        signature: in base64, "" without one.

    Raises:
        RunNotSigned: no signature, or one of another key, other settings or another federation.toml.
    """
    if not agreement.run_key:
        return
    about = f"the settings of sha256 {hash_of(settings)}"
    check_signature(agreement, signed_text(agreement.sha256, settings), signature, about)


def signed_app_text(federation: str, sites: Sequence[str], config: Mapping[str, Any]) -> bytes:
    """Return what is signed of a run of another Flower app.

    Args:
        federation: the sha256 of federation.toml, which names the app.
        sites: the names of those that take part.
        config: the run config as the app gets it, without the signature.
    """
    code = hash_of(json.dumps(dict(config), sort_keys=True))
    names = ",".join(sites)
    return f"fedskew app run\nfederation {federation}\nsites {names}\nconfig {code}\n".encode()


def check_app_signed(agreement: Agreement, site: str, run_config: Mapping[str, Any]) -> None:
    """Check a run of another Flower app.

    Args:
        agreement: with the key that signs runs; without one there is nothing to check.
        site: the name of this site.
        run_config: as the app gets it, with the signature.

    Raises:
        RunNotSigned: as `check_signed`, and for a run that is signed for other sites.
    """
    if not agreement.run_key:
        return
    names, _, signature = str(run_config.get(RUN_SIGNATURE, "")).partition(" ")
    sites = names.split(",")
    config = {key: value for key, value in run_config.items() if key != RUN_SIGNATURE}
    text = signed_app_text(agreement.sha256, sites, config)
    check_signature(agreement, text, signature, "this run config")
    if site not in sites:
        raise RunNotSigned(f"this site is none of those that the run is signed for: {names}")


def check_signature(agreement: Agreement, text: bytes, signature: str, about: str) -> None:
    """Raise RunNotSigned unless the agreement's run-key has signed a text; `about` says in words what that is."""
    if not signature:
        raise RunNotSigned(f"federation.toml has a run-key, and nobody has signed {about}")
    key = load_ssh_public_key(agreement.run_key.encode())
    assert isinstance(key, EllipticCurvePublicKey)
    try:
        key.verify(base64.b64decode(signature, validate=True), text, ALGORITHM)
    except (InvalidSignature, binascii.Error, ValueError):
        raise RunNotSigned(
            f"the signature is not one of the run-key in federation.toml for {about}"
        ) from None
