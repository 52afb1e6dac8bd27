"""Directories of mesh on a host, and what agents have in place of slow modules of the standard library."""
