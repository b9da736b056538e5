"""Match and rewrite subgraphs by declarative rules."""
