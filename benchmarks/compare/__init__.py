"""The published comparison: what a user would pick instead of compcache, on the same work in the same run.

`peers/` holds one file per contender, `programs/` what their processes import, `curves/` one file per table and plot.
`../publish.py` is the command.
"""
