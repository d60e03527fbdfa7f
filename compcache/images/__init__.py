"""Creates and loads images of compiled code. Each kind of image has a folder. The other modules serve all kinds."""
