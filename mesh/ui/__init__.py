"""The server of `mesh ui`: runs, jobs and hosts as pages of a browser on this machine."""
