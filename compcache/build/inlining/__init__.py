"""Small functions that other modules may inline: the bodies that a module offers, and those that it takes from others."""
