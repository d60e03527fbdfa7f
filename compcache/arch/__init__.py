"""CPU architectures: one module for each architecture, and the tables of CPUs and features."""
