"""Hosts that are reached over SSH."""
