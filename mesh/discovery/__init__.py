"""Which hosts a cluster has, where that is not written down: TPUs of Google Cloud, by name."""
