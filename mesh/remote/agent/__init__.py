"""The program on each host: standard library only, Python 3.8 or later, imports nothing of mesh.

``mesh.remote.blob`` packs these modules into one piece of text that travels over the channel's stdin. They are
ordinary modules as well: the local end imports ``frames``, so that the protocol is written once.
"""
