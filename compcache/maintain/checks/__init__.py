"""The steps of a check, a file for each subject. `compcache.maintain.check` lists the steps."""
