"""Constants take the form in which products read them."""
