"""The workspace on this host: changes and packs come in, and are put in place."""
