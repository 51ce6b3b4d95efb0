"""Attacks on a federation, one function each: `python deploy/try_attacks.py` tries them all."""
