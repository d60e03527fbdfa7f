"""The linkers of the system: finds them, and runs one."""
