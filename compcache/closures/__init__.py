"""Links modules that are cached separately: their code becomes one image, which is a further realization of the requested functions."""
