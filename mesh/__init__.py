"""mesh makes a cluster of hosts reached over SSH feel like one machine."""

__version__ = "0.2.0"
