"""Processes of this interpreter beside the program, isolated from the program's own set-up."""
