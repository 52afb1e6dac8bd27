"""The part of ``mesh.launchpad`` that runs in every node, by the standard library alone."""
