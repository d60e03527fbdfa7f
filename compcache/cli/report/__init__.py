"""A report on a cache in one page: the questions to the cache, their charts, the page."""
