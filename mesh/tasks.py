"""mesh's commands for a tasks.py of your own: ``from mesh.tasks import namespace``, or single tasks of it."""

from mesh.cli.tasks import clusters, execute, init, namespace, run, ssh

__all__ = ["clusters", "execute", "init", "namespace", "run", "ssh"]
