"""Connections to a broker, and what they cost."""
