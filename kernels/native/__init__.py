"""What carries kernels: machine code and its cache, the thread pool, the choice of loops."""
