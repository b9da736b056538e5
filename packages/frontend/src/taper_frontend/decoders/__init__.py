"""Export language models of transformers, to be run by :class:`taper_runtime.Generator`."""
