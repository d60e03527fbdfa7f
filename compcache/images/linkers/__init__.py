"""The linkers of the system: which there are, which of them starts fastest, and how one is run."""
