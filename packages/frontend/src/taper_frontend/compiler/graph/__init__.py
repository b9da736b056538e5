"""Represent a program as a graph that lowering builds and passes rewrite."""

from __future__ import annotations

from taper_frontend.compiler.graph.evaluate import evaluate
from taper_frontend.compiler.graph.graph import Graph
from taper_frontend.compiler.graph.node import Node, Source
from taper_frontend.compiler.graph.state import State

__all__ = ["Graph", "Node", "Source", "State", "evaluate"]
