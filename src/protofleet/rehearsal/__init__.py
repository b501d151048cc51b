"""Weeks of a fleet in minutes: the real rounds and training, in virtual time."""
