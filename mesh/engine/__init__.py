"""The engine: the supervisor decides the next step of a run, the launcher carries it out."""
