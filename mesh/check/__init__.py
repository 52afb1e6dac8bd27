"""Fitness of hosts for a run: what is compared, what is wrong, and what to do about it."""
