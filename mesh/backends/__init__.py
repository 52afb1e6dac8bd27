"""Ways to reach hosts: each opens channels over its own transport (SSH, a command here, pods, or a switchboard)."""
