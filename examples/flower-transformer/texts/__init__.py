"""A Flower app that trains a transformer of Hugging Face."""
