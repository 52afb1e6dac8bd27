"""Answers to questions about this host."""
