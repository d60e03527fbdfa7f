"""The story of a cache on one page: what is asked of the cache, charts of it, the page."""
