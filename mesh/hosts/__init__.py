"""Sources of hosts: lists in cluster.yaml, the TPU API, and pods of Kubernetes."""
