"""Optimize a graph and plan its memory, without torch.

Data flows one way: a :class:`~taper_frontend.compiler.graph.Graph`, the ``stages`` that rewrite it,
the ``planning`` that gives each tensor its place, a plan. ``analysis`` has what several of them ask
of a graph, ``rules`` the language that rewrites are written in.
"""
