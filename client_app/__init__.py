"""The client side: one training loop, the methods' local variants, and each client's memory."""
