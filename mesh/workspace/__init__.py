"""Which files belong to the workspace, and how they travel."""
