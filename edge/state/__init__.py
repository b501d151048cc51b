"""What a device keeps: rounds, models, bundles and counters, decided by one commit."""
