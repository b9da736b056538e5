"""Run transformers' own exporter tests on the format "taper"."""
