"""Questions about a graph that more than one stage asks."""
