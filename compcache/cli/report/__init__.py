"""A report on a cache as one page: the data, the charts, the page."""
