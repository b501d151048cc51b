"""The comparisons, a module for each family of kernels."""
