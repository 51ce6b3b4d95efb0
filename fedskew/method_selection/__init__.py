"""Which method pays on a federation: a fair race, scored on what clients keep for validation."""
