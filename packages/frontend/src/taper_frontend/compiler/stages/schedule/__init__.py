"""What is computed together, and in which pieces."""
