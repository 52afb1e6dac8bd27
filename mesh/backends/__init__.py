"""Ways to reach hosts: each opens a Channel, and differs from the others in nothing else."""
