"""What happens on the server between receiving and sending: how updates become a model, and what is deployed."""
