"""The mutable IR that lowering builds and passes rewrite."""

from __future__ import annotations

from taper_frontend.graph.evaluate import evaluate
from taper_frontend.graph.graph import Graph
from taper_frontend.graph.node import Node

__all__ = ["Graph", "Node", "evaluate"]
