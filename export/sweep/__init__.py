"""Which operators and architectures export: each is exported, proved and trained in both runtimes."""
