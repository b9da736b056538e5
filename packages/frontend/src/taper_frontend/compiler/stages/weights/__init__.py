"""Give constants the form in which products read them."""
