"""The backend of hosts that are reached through a switchboard: one connection carries the channels of all of them."""
