"""Command lines of other programs, done by mesh."""
