"""Frozen values and small interfaces that all other layers share, without I/O."""
