"""Records what this process compiled: the functions, their symbols, and the implementations that the compiler used."""
