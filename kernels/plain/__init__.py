"""Loops in NumPy, for devices without Numba; the same functions compiled: ``compiled/``."""
