"""Read and write model files (.oinf): named sizes, metadata and tensors."""
