"""Keys, grants, sessions, and what is signed and sealed with them."""
