"""Dependency graphs as text, DOT, SVG and HTML."""
