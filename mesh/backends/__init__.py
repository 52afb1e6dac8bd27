"""Ways to reach hosts: each opens channels over its own transport (SSH, a command that is started here, pods, or a switchboard)."""
