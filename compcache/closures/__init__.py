"""Links what is cached apart: the code of several modules becomes one image, as one more realization of the functions that were asked for."""
