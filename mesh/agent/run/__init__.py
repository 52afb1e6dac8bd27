"""A run on this host: its lock, the environment of its ranks, their processes and devices."""
