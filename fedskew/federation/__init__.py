"""The coordinator's side of a federation: certificates, SuperLink, gateway, and runs that resume by themselves."""

PASSPHRASE = "FEDSKEW_PASSPHRASE"
"""The environment variable with the passphrase of the coordinator's keys, where nobody can be asked for it."""
