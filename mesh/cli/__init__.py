"""The ``mesh`` command: option table, commands, tables for people. Each command calls one function of ``mesh.api``."""
