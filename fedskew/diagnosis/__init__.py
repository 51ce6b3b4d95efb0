"""Which skew is it, and what is known to fail there: from the samples of each class at each site alone.

Nothing in here imports torch or looks at an image.
"""
