"""Judge Taper by PyTorch's own samples of its ops."""
