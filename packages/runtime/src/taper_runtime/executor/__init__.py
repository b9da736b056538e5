"""Execute plans: prepare them for running, and run them."""
