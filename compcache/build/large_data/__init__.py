"""Large constants: removed from a module before its code is printed, and inserted into its object."""
