"""Processes of this interpreter that run beside the program, isolated from the program's import path and environment."""
