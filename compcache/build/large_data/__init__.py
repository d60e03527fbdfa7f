"""Large constants: taken out of a module before its code passes through text, put back into its object."""
