"""What a message says of its run, for the audit log: the run's id, its local methods and the round."""

import json
from typing import Any

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


def round_of(task: Any) -> dict[str, int]:
    """Return `round` of a message's task, where it states one."""
    number = task.get("round")
    return {"round": number} if type(number) is int else {}
