"""Loads of several modules: which one provides a variable, and closures that a process before this one has planned."""
