"""Define the language that rewrites of a graph are written in."""
