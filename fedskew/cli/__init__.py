"""The command line: a file a command, and what they print with."""
