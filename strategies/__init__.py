"""The server side of a round: how updates become a model, and which models are deployed."""
