"""Which rank failed first, why, and in which words."""
