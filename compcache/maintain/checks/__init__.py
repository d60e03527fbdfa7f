"""The steps of a check, a file for each thing that is looked at; `compcache.maintain.check` lists them."""
