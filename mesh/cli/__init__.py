"""The ``mesh`` command: option table, commands and tables for people. Each command calls one function of ``mesh.api``."""
