"""A small project to begin with: what ``protofleet new`` writes."""
