"""Hosts that are reached over SSH."""

VARIABLES = ("SSH_AUTH_SOCK",)  # of the environment, that decide whether a login succeeds
