"""Command lines of other programs (MaxText, madengine, tlaunchrun), translated into calls of api."""
