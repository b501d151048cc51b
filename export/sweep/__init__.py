"""Which operators and architectures export: each is proved, and trained in both runtimes."""
