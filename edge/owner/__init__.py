"""When the owner lets a device take part, and what it says about that."""
