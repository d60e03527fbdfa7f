"""Small functions that other modules may inline: what a module offers of its own, and what comes into a module of others."""
