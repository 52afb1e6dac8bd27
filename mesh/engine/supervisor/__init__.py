"""The decisions of a run, without threads, sockets or clocks: events in, orders out."""

from mesh.engine.supervisor.supervisor import Supervisor

__all__ = ["Supervisor"]
