"""The ``mesh`` command: each command reads its options and calls one function of ``mesh.api``."""
