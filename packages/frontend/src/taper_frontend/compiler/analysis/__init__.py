"""Answer questions about a graph that more than one stage asks."""
