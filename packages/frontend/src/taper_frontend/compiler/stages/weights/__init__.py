"""Convert constants to the formats in which products read them."""
