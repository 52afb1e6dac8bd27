"""The local end of an agent: session, messages, shipping."""
