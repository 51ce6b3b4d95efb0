"""Which runs a site takes: those that the coordinator's key has signed and, with approve-runs, somebody here approved.

Every message holds the run's settings as one JSON text. The text's sha256 stands for it: in the audit log, in what the
coordinator's run prints, and in the site's state, where STATE/runs-asked/SHA256.json waits for somebody to look at it,
and STATE/approved/runs/SHA256.json is approved.

With a run-key in federation.toml, who holds the SuperLink and not that key can neither start another run nor change
one's settings. The signature travels in flwr's run config, so no message has to carry it. It says nothing of the
weights in the messages.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from client_app.local_site import RUN_SIGNATURE, RunNotAllowed, RunNotSigned, hash_of
from data import DataError
from data.agreement import Agreement
from site_agent.config import Site

ALGORITHM = ECDSA(SHA384())
"""As P-384 is meant to be used (FIPS 186-5, SP 800-57)."""
LONGEST_SIGNATURE = 200
"""Characters of a signature that the audit log keeps; one of P-384 has at most 140."""
LONGEST_SETTINGS = 2**16
"""Characters of the longest settings that are kept for a person to read."""
MOST_WAITING = 100
"""Runs that wait for approval at most: a coordinator must not fill a site's disk with them."""


# ---- signatures ------------------------------------------------------------------------------------------------------


def signed_text(federation: str, settings: str) -> bytes:
    """Return what is signed of a run of FedSkew's app.

    The first line keeps the signature from being one of anything else. The settings have the run's name in them.

    Args:
        federation: the sha256 of federation.toml.
        settings: the run's, the JSON text that every message holds.
    """
    return f"fedskew run\nfederation {federation}\nsettings {hash_of(settings)}\n".encode()


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


def check_signed(agreement: Agreement, settings: str, signature: str) -> None:
    """Check a run of FedSkew's app.

    Args:
        agreement: with the key that signs runs; without one there is nothing to check.
        settings: the run's, as the message holds them.
        signature: in base64, "" without one.

    Raises:
        RunNotSigned: no signature, or one of another key, other settings or another federation.toml.
    """
    about = f"the settings of sha256 {hash_of(settings)}"
    check_signature(agreement, signed_text(agreement.sha256, settings), signature, about)


def check_app_signed(agreement: Agreement, site: str, run_config: Mapping[str, Any]) -> None:
    """Check a run of another Flower app.

    Args:
        agreement: with the key that signs runs; without one there is nothing to check.
        site: the name of this site.
        run_config: as the app gets it, with the signature.

    Raises:
        RunNotSigned: as `check_signed`, and for a run that is signed for other sites.
    """
    config = dict(run_config)
    names, _, signature = str(config.pop(RUN_SIGNATURE, "")).partition(" ")
    sites = names.split(",")
    text = signed_app_text(agreement.sha256, sites, config)
    check_signature(agreement, text, signature, "this run config")
    if agreement.run_key and site not in sites:
        raise RunNotSigned(f"this site is none of those that the run is signed for: {names}")


def check_signature(agreement: Agreement, text: bytes, signature: str, about: str) -> None:
    """Raise RunNotSigned unless the agreement's run-key has signed a text; `about` says in words what that is."""
    if not agreement.run_key:
        return
    if not signature:
        raise RunNotSigned(f"federation.toml has a run-key, and nobody has signed {about}")
    key = load_ssh_public_key(agreement.run_key.encode())
    assert isinstance(key, EllipticCurvePublicKey)
    try:
        key.verify(base64.b64decode(signature, validate=True), text, ALGORITHM)
    except (InvalidSignature, ValueError):
        raise RunNotSigned(
            f"the signature is not one of the run-key in federation.toml for {about}"
        ) from None


# ---- approval --------------------------------------------------------------------------------------------------------


def waiting(site: Site) -> dict[str, Path]:
    """Return the files of the runs that wait for approval, by the hash of their settings."""
    return {file.stem: file for file in sorted(waiting_folder(site).glob("*.json"))}


def waiting_folder(site: Site) -> Path:
    """Return the folder of the runs that wait for approval."""
    return site.state / "runs-asked"


def approved(site: Site) -> Path:
    """Return the folder of the runs that are approved."""
    return site.approved / "runs"


def check_approved(site: Site, settings: str) -> None:
    """Raise RunNotAllowed where the site's policy asks for approval of a run and nobody has given it.

    The run then waits, unless as many wait already as are kept.
    """
    code = hash_of(settings)
    if not site.policy.approve_runs or (approved(site) / f"{code}.json").exists():
        return
    if len(settings) > LONGEST_SETTINGS:
        raise RunNotAllowed("approve-runs", f"its settings have {len(settings)} characters")
    folder = waiting_folder(site)
    others = waiting(site).keys() - {code}
    if len(others) >= MOST_WAITING:
        raise RunNotAllowed(
            "approve-runs", f"{len(others)} runs wait already: delete some of {folder}"
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = folder / f"{code}.part"
    part.write_text(settings, encoding="utf-8")
    part.replace(folder / f"{code}.json")
    raise RunNotAllowed("approve-runs", f"look at the run with `fedskew-site approve-run {code}`")


def settings_waiting(site: Site, code: str) -> str:
    """Return the settings of a run that waits. Raises DataError for a hash of none."""
    file = waiting(site).get(code)
    if file is None:
        raise DataError(
            f"{code[:80]}: no run with these settings waits; `fedskew-site runs` lists them"
        )
    settings = file.read_text(encoding="utf-8")
    if hash_of(settings) != code:
        raise DataError("is not what its name says; delete it", where=str(file))
    return settings


def approve(site: Site, code: str) -> None:
    """Approve a run that waits. Raises DataError for a hash of none."""
    settings_waiting(site, code)
    approved(site).mkdir(mode=0o700, parents=True, exist_ok=True)
    waiting(site)[code].replace(approved(site) / f"{code}.json")


def shown(settings: str) -> str:
    """Return a run's settings for a person, a line each, in ASCII. Raises DataError for what is no JSON."""
    try:
        return json.dumps(json.loads(settings), indent=2, sort_keys=True)
    except (ValueError, RecursionError):
        raise DataError("the run's settings are no JSON") from None
