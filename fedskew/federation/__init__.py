"""The coordinator's side of a federation: certificates, SuperLink, gateway, and runs that resume by themselves."""
