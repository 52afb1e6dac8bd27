"""Streams between a client and programs of this host, through a channel of their own."""
