"""Named experiments, and the runs that they stand for."""
