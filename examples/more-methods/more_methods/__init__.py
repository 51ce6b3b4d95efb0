"""FedCOF, FedDisco and FedVLS as plug-ins of FedSkew: one file per method."""
