"""The coordinator's side of a federation: certificates, SuperLink, and runs that resume by themselves."""
