"""CPU architectures: one module for each architecture, and tables of CPUs and features."""
