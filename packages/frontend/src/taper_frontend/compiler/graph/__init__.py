"""Represent a program as a graph, which lowering builds and passes rewrite."""

from __future__ import annotations

from taper_frontend.compiler.graph.graph import Graph
from taper_frontend.compiler.graph.graph_state import GraphState
from taper_frontend.compiler.graph.interpret import evaluate
from taper_frontend.compiler.graph.node import Node, SourceLine

__all__ = ["Graph", "GraphState", "Node", "SourceLine", "evaluate"]
