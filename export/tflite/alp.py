"""ALP's operators in ordinary ones: the plan by row and column scaling vectors.

Symbols and source: ``protofleet.export.alp``.
"""
