"""The heart: the supervisor decides what a run does next, the launcher does it."""
