"""The stream to a client, which survives channels: outbox, spool and journal."""
