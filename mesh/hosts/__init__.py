"""Sources of hosts: lists in cluster.yaml, and the TPU API."""
