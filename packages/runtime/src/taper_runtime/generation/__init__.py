"""Generate tokens with the plan of a decoder."""
