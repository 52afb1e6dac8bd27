"""The engine: the supervisor decides the next step of a run, and the launcher carries it out."""
