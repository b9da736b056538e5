"""Read and write the plan file: a safetensors file that carries a plan (docs/format.md)."""

FORMAT = "taper"
FORMAT_VERSION = 3
