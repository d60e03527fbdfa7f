"""CPU architectures: one file each with everything that differs, and the tables of their CPUs and features."""
