"""Text from elsewhere: what clients, workers and files say."""

WORDS = 1000
"""Characters of a text from elsewhere that are kept."""


def printable(text: object) -> str:
    """Return a text from elsewhere for records and terminals: one line, cut at `WORDS`, control characters escaped."""
    whole = str(text)
    kept = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in whole[:WORDS])
    return "".join(kept) + f"... ({len(whole)} characters)" * (len(whole) > WORDS)
