"""Hosts that are nodes of an allocation of Slurm, reached through the switchboard of its holder."""
