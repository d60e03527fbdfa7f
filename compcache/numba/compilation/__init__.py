"""What is known of compilations of this process: which functions, under which symbols, with whose implementations."""
