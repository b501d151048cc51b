"""A coordinator's process: how it starts, stops, takes over and is operated."""
