"""The rounds: what is asked of clients, how replies are checked and combined, and the adapter to flwr."""
