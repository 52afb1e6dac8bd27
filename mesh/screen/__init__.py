"""The user's terminal: output, live line, status and summary; also the events as JSON lines."""
