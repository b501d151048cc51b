"""A federation on this machine under faults, beside one that is left alone.

``protofleet chaos`` runs it; docs/reliability.md says what each fault is and what came out.
"""
