"""Let external code compute nodes: users' kernels, delegates and providers."""
