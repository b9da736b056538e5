"""Export architectures of the zoo, and compare what they give with torch."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_leaves

import taper_frontend
import taper_runtime
from tools.zoo import GROUPS
from tools.zoo.judge import TOLERANCE, largest_error


def members(names):
    """Return pairs of group and name."""
    return [(group, name) for group, listed in names.items() for name in listed]


def run(group, name):
    """Export an architecture, run it and compare; return the plan."""
    if group not in ("layers", "control flow"):
        pytest.importorskip("transformers")
    module, inputs = GROUPS[group][name].build()
    with torch.no_grad():
        leaves = tree_leaves(module(**inputs))
    wanted = [leaf.numpy() for leaf in leaves if isinstance(leaf, torch.Tensor)]
    plan = taper_frontend.export(module, (), inputs, verify=False)
    session = taper_runtime.InferenceSession(plan)
    got = session.run(None, dict(plan.samples))
    assert largest_error(got, wanted) <= TOLERANCE
    listed = [fallback["node"] for fallback in plan.metadata["fallbacks"]]
    assert listed == [*session.kernel_kinds().get("numpy", ())]
    return plan
