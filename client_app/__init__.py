"""What happens on a client: one training loop, local variants, memory."""
