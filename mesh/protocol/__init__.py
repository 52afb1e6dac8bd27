"""The messages between clients and agents, each declared once and read by both ends; shipped with the agent."""
