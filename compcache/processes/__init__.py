"""Processes of this interpreter beside the program: nothing that the program has set up for itself reaches them."""
