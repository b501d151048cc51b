"""Papers' tables, run again: committed configurations, three engines, results side by side."""
