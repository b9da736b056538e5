"""Optimize a graph and plan its memory, without torch.

Data flow in one direction: from a :class:`~taper_frontend.compiler.graph.Graph` through ``stages``,
which rewrite it, and ``planning``, which gives each tensor a place, to a plan. ``analysis`` answers
questions about graphs that several of these have, and ``rules`` is the language of rewrites.
"""
