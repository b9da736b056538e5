"""Measure what quantization does to the results of models with trained weights."""
