"""The control socket, by which processes of this user find this user's agents."""
