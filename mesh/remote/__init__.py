"""The program on each host (agent), and its local end: session, messages, shipping."""
