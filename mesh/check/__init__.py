"""Fitness of hosts for a run: what is checked and compared, each finding, and advice."""
