"""Child processes that run this interpreter isolated from the program's import path and environment."""
