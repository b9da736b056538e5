"""One form for what can be written in several ways."""
