"""The process that holds connections and agents between commands: its server, its client and their messages."""
