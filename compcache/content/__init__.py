"""Content names: function names that contain a digest of everything that determines the function's behaviour."""
