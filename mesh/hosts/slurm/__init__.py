"""Hosts that are nodes of an allocation of Slurm, which mesh asks for or which is there."""
