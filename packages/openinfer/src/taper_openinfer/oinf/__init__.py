"""Model files (.oinf): named sizes, metadata and tensors, read when they are needed."""
