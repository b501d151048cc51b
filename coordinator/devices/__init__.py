"""Who is there, and what devices say of themselves."""
