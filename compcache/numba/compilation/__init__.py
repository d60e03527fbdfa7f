"""Records the compilations of this process: the functions, their symbols, and the implementations that the compiler used."""
