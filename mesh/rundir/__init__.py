"""The directory of a run: writing it, reading it back, and what its files mean."""
