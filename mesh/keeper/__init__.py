"""Connections and agents that wait between commands."""
