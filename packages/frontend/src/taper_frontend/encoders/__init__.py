"""Export text encoders with their tokenizers: folders of sentence-transformers, and modules."""
