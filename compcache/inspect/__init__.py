"""Details of single functions: realizations, dependency graphs, code, reasons why a function is not cached."""
