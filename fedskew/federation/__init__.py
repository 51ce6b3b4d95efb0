"""The coordinator's side of a federation of sites: certificates, SuperLink, gate, and runs that go on by themselves."""
