"""Diagnosis of the skew from the samples of each class at each site, and the methods known to fail under it.

Nothing in here imports torch or looks at an image.
"""
