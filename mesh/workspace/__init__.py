"""The files of a workspace: which belong to it, and how they travel."""
