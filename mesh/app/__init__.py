"""Assembly: the one place where concrete classes meet."""
