"""FedAvg of FedSkew beside the tools that users would pick instead, on the same work; see __main__.py."""
