"""Sources of hosts: where the hosts of a cluster come from."""
