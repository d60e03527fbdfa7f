"""The linkers of the system: which there are, and how one is run."""
