"""The program on each host: standard library only, Python 3.8 or later.

``mesh.remote.blob`` packs it with ``mesh.protocol`` into one zip, which each host unpacks once for each version.
"""
