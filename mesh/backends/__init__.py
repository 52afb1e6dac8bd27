"""Ways to reach hosts: each opens channels over its own transport (SSH, or a command that is started here)."""
