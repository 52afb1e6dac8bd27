"""Processes of a run: how they are started, found and ended."""
