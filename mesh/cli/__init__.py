"""The ``mesh`` command: the option table, the commands, and tables for people. Each command calls one function of api."""
