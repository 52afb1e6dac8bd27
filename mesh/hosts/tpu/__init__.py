"""TPUs by name: the hosts that Google's TPU API lists."""
