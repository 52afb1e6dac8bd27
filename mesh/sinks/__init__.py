"""Readers of the events of a run: the terminal, JSON lines, and the run directory."""
