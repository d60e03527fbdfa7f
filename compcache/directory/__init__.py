"""The files of a cache directory: where they are, how one is opened, whose are used."""
