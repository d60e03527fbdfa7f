"""What sources are, as digests and names that stand for all that decides what their functions do."""
