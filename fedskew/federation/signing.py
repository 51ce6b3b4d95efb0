"""The coordinator's key: it signs runs, and the sites take no other where federation.toml has its public half.

It is needed by who starts runs, and by nothing on the SuperLink's machine: it may be on another machine.
"""

import base64
import tomllib
from collections.abc import Mapping
from pathlib import Path

from client_app.local_site import RUN_SIGNATURE
from data import DataError
from data.agreement import Agreement
from site_agent.keys import public_text, read_key
from site_agent.run_approval import ALGORITHM

DECLARED = f'{RUN_SIGNATURE} = ""'
"""The line under [tool.flwr.app.config] without which flwr passes no signature to an app."""


def signature(agreement: Agreement, text: bytes, path: Path) -> str:
    """Return the signature of a run's text in base64, "" where federation.toml has no run-key.

    Args:
        agreement: of the federation.
        text: what is signed of the run, as site_agent/run_approval.py writes it.
        path: the key's file.

    Raises:
        DataError: the file is missing, open to others, or has another key than the agreement's run-key.
    """
    if not agreement.run_key:
        return ""
    if not path.exists():
        reason = "there is no such key, and federation.toml has a run-key"
        remedy = "name the key's file with --coordinator-key"
        raise DataError(reason, where=str(path), remedy=remedy)
    key = read_key(path)
    if public_text(key.public_key()) != agreement.run_key:
        reason = "is not the key whose public half is run-key in federation.toml"
        raise DataError(reason, where=str(path))
    return base64.b64encode(key.sign(text, ALGORITHM)).decode()


def takes_signature(files: Mapping[str, bytes]) -> bool:
    """Return whether an app's run config has a place for the signature; flwr refuses a key that it does not declare."""
    try:
        table = tomllib.loads(files["pyproject.toml"].decode())
        return RUN_SIGNATURE in table["tool"]["flwr"]["app"]["config"]
    except (LookupError, ValueError, TypeError):
        return False
