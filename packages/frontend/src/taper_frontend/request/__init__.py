"""Read what a caller of ``export`` asks for: arguments, dims, names and notes."""
