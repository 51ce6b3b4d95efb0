"""A run between sites: what the server asks them first, and what it writes down of data that it does not see."""

from collections.abc import Callable
from typing import Any

from client_app.site import POLICY
from data import Federation, SettingError
from data.sources.agreement import Agreement
from server_app.evaluation import sizes
from strategies.base import Rounds
from strategies.exchange import Grid
from strategies.questions import ask_readiness


def ask_sites(rounds: Rounds, grid: Grid, agreement: Agreement, method: str, tell: Callable[[str], None]) -> None:
    """Ask every site whether it can do its part, and tell why one cannot.

    Raises SettingError for what a site does not let leave, TooFewReplies when fewer than min-sites are ready.
    """
    failures = ask_readiness(rounds, grid).failures
    for client, reason in failures.items():
        tell(f"site {agreement.names[client]} is not ready: {reason}")
    for client, reason in failures.items():
        if reason.startswith(POLICY):
            kept = reason.removeprefix(POLICY).strip()
            raise SettingError(
                "method", method, f"needs what site {agreement.names[client]} does not let leave: {kept}"
            )


def about_data(federation: Federation, agreement: Agreement | None) -> dict[str, Any]:
    """Return what settings.json says of the data: of sites what they have agreed to, else who holds how much."""
    if agreement is None:
        return {"samples": sizes(federation)}
    return {"agreement": {"name": agreement.name, "sha256": agreement.sha256, "sites": agreement.names}}
