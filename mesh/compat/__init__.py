"""Command lines of other programs (MaxText, madengine), translated into calls of api."""
