"""The part of programs that runs in every node: links, calls, serving and codecs, by the standard library alone."""
