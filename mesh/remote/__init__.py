"""What runs on the hosts (agent), and its local end (session)."""
