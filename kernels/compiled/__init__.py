"""Loops that Numba and LLVM compile; the same functions in NumPy: ``plain/``."""
