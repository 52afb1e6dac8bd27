"""What dies, and what ranks do meanwhile: python -m tests.chaos --help."""
