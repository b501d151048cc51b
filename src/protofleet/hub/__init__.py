"""The hub: one process that gives browsers the page, the bundle, and a way to the broker."""
