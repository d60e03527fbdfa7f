"""One file per table and plot: `measure` gives what is recorded, `markdown` and `plot` show a record."""
