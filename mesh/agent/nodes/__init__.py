"""The nodes of a program on this host: their sockets, control channels, files, restarts and relayed connections."""
