"""Export vision models, and compare what they give with torch."""

from __future__ import annotations

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

import taper_frontend
import taper_runtime
from taper_runtime.machine import limits
from taper_runtime.machine.limits import TYPICAL
from taper_runtime.ops import REGISTRY
from tools.zoo import VISION
from tools.zoo.judge import TOLERANCE, largest_error

#: Ops that only put values elsewhere; joining and picking them is not counted.
MOVES = {"COPY", "EXPAND", "FLIP", "PERMUTE", "RESHAPE", "SLICE", "TRANSPOSE"}


def check(module, args=(), kwargs=None):
    """Export, run natively, compare; return the plan."""
    with torch.no_grad():
        wanted = [leaf.numpy() for leaf in tree_leaves(module(*args, **(kwargs or {})))]
    plan = taper_frontend.export(module, args, kwargs, verify=False)
    session = taper_runtime.InferenceSession(plan)
    got = session.run(None, dict(plan.samples))
    assert not [node for node in plan.metadata["fallbacks"] if REGISTRY[node["op"]].native]
    assert largest_error(got, wanted) <= TOLERANCE
    assert min(np.linalg.norm(want) for want in wanted) > 0
    return plan


def moves(plan):
    """How many nodes do nothing but move values."""
    return sum(node.op in MOVES and plan.is_executed(node) for node in plan.nodes)


def check_moves(name, expected):
    """A model of the zoo has so many nodes that do nothing but move values."""
    module, inputs = VISION[name].build()
    assert moves(check(module, kwargs=inputs)) == expected


def check_microbatches(name, monkeypatch):
    """A batch of five images is split where the caches are small, with right results."""
    near = TYPICAL.memory[0]._replace(size=4 << 10)
    machine = TYPICAL._replace(memory=(near, *TYPICAL.memory[1:]), node_ns=0.0)
    monkeypatch.setattr(limits, "TYPICAL", machine)
    module, inputs = VISION[name].build()
    images = torch.randn(5, *inputs["pixel_values"].shape[1:])
    plan = check(module, kwargs={"pixel_values": images})
    split = {node.output.split(".items")[0] for node in plan.nodes if ".items" in node.output}
    assert len(split) > 10
