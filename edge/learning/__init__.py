"""Local training: rounds, trials of learning rates, and a head alone; what they cost."""
