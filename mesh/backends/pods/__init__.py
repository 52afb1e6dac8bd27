"""Pods of Kubernetes, reached by ``pods/exec`` on a websocket."""
