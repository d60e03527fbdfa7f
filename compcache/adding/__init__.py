"""From sources to stored modules: what was built is published, counted and kept below the size limit; many sources at once."""
