"""The user's terminal: output, live line, status, summary; and the events as JSON lines."""
