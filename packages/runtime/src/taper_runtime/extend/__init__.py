"""Let foreign code compute nodes: users' kernels, delegates and providers."""
