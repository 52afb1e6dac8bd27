"""Frozen values and small interfaces that every other layer shares; no I/O here."""
