"""Modules that prepare hosts and wrap the command: docker, virtual environments, conda, gcsfuse and ssh keys."""
