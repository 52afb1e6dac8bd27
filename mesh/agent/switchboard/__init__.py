"""The switchboard: carries streams between clients and the nodes of one allocation. It travels as a zip of its own."""
