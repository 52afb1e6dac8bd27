"""The ``mesh`` command: the option table, the commands, and tables for people. A command calls one function of api."""
