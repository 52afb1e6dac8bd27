"""The run directory: writer, log files, reader, replay and results."""
