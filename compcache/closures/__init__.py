"""Links what is cached apart: code of several modules becomes one image, as one more realization of the functions that it is for."""
