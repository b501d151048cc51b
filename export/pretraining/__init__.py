"""Central training before a federation, and the checkpoints that it leaves."""
