"""A root's cells, each a coordinator of its own."""
