"""mesh's commands for a tasks.py of your own: ``from mesh.tasks import namespace``, or single tasks of it."""

from mesh.cli.tasks import check, clusters, completion, execute, init, namespace, pull, push, run, setup, ssh

__all__ = ["check", "clusters", "completion", "execute", "init", "namespace", "pull", "push", "run", "setup", "ssh"]
