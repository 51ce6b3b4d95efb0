"""Where the samples come from: one file a kind of source, and what they share."""
