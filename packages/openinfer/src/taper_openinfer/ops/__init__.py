"""Define OpenInfer's ops: their table, their rules, and their computation."""

from __future__ import annotations

from taper_openinfer.ops.call_rules import combinations, complete, existing, output_type
from taper_openinfer.ops.compute import evaluate, prepare
from taper_openinfer.ops.formulas import formula_of_plan, native_node
from taper_openinfer.ops.table import OPS, OpSpec, Setting

__all__ = [
    "OPS",
    "OpSpec",
    "Setting",
    "combinations",
    "complete",
    "evaluate",
    "existing",
    "formula_of_plan",
    "native_node",
    "output_type",
    "prepare",
]
