"""Named experiments, and their runs."""
