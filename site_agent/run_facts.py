"""What a message says of its run, for the audit log: the run's id, its local methods and the round."""

import json
from typing import Any

from data.agreement import SHA256
from data.readers.catalog import SITES_PREFIX
from site_agent.config import RUN

PLAIN = "plain training"
LONGEST = 200
"""Characters of the methods' names."""


def facts_of(settings: str) -> dict[str, str]:
    """Return `name` and `method` of a run's settings, a message's JSON text. What is not as it should be is left out.

    `name` is the run's id at the coordinator. `method` has the local methods, which compute here; what the server does
    with the replies is in no message.
    """
    try:
        stated = json.loads(settings)
        folder, variants = stated["folder"], stated["variants"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return {}
    facts = {}
    if isinstance(folder, str) and RUN.fullmatch(folder):
        facts["name"] = folder
    if isinstance(variants, dict):
        facts["method"] = ("+".join(variants) or PLAIN)[:LONGEST]
    return facts


def text_of(settings: str) -> str:
    """Return the sha256 of federation.toml that a run's settings, a message's JSON text, state; "" without one.

    It only chooses under which text a message is answered. The code that answers compares the two once more.
    """
    try:
        dataset = json.loads(settings)["data"]["dataset"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return ""
    if not isinstance(dataset, str) or not dataset.startswith(SITES_PREFIX):
        return ""
    code = dataset.removeprefix(SITES_PREFIX)
    return code if SHA256.fullmatch(code) else ""


def round_of(task: Any) -> dict[str, int]:
    """Return `round` of a message's task, where it states one."""
    number = task.get("round")
    return {"round": number} if type(number) is int else {}
