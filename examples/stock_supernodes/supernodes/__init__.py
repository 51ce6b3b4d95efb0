"""A Flower app for stock SuperNodes, each of which has data of its own."""
