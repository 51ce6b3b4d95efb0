"""A Flower app in the form of Flower's quickstart."""
