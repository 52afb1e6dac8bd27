"""A run that goes on without its client: its rules, its journal, and the agents on other hosts."""
