"""Inlining between modules: the bodies that a module offers, and the bodies that it inlines from other modules."""
