"""Papers' tables, run again: committed configurations, two engines, results side by side."""
