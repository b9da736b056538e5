"""Read the arguments of ``export``: the model, example arguments, dims, names and options."""
