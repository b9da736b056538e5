"""The backend "c": regions of elementwise ops as C, which the system's compiler makes a library."""
