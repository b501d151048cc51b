"""What a run does for owners: scores, gains, trouble, the gate, and a learning rate that fits."""
