"""What a run says of a round."""

from itertools import islice

from server_app.composition import row_name
from server_app.record import RoundRecord
from server_app.run_settings import RunSettings

NAMED = 10
"""Clients that a round's line names as left out."""


def line_of(record: RoundRecord, settings: RunSettings) -> str:
    """Return one line about a round."""
    words = [f"round {record.round:>3}/{settings.general.rounds}  loss {record.loss:.3f}"]
    for name, numbers in record.models.items():
        words.append(f"{row_name(settings.parts, name)} {numbers['balanced-accuracy']:.4f}")
    if record.failures:
        more = len(record.failures) - NAMED
        names = [f"client {client}" for client in islice(record.failures, NAMED)] + [
            f"{more} more"
        ] * (more > 0)
        words.append(f"left out: {', '.join(names)}")
    return "  ".join(words)
