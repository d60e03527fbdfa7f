"""Records of this process's compilations: the functions, their symbols, and the implementations that they used."""
