"""Vision models: exported, run natively from end to end, compared with torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

import taper_frontend
import taper_runtime
from marks import NUMPY
from taper_runtime.machine import limits
from taper_runtime.machine.limits import TYPICAL
from taper_runtime.ops import REGISTRY
from tools.zoo import VISION
from tools.zoo.architecture import as_trained
from tools.zoo.judge import TOLERANCE, largest_error
from vision_models import MODELS

torch.set_num_threads(1)

pytestmark = NUMPY

#: Ops that only put values elsewhere; joining and picking them is not counted.
MOVES = {"COPY", "EXPAND", "FLIP", "PERMUTE", "RESHAPE", "SLICE", "TRANSPOSE"}

#: Model of the zoo -> nodes that may do nothing but move values. Each has one permutation where the
#: image comes in.
HUGGING_FACE = {
    "ResNetForImageClassification": 1,
    "MobileNetV2ForImageClassification": 1,
    "EfficientNetForImageClassification": 1,
    "ConvNextForImageClassification": 1,
    "ViTForImageClassification": 1,
    "DeiTForImageClassification": 1,
    "SwinForImageClassification": 3,  # windows are cut out and put back in each of 4 layers
    "SegformerForSemanticSegmentation": 2,
    "CLIPVisionModelWithProjection": 1,
    "Dinov2ForImageClassification": 1,
}


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


@pytest.mark.parametrize("name", MODELS)
def test_plain(name):
    make, shape, expected = MODELS[name]
    torch.manual_seed(0)
    assert moves(check(as_trained(make()).eval(), (torch.randn(shape),))) == expected


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_transformers(name):
    pytest.importorskip("transformers")
    module, inputs = VISION[name].build()
    assert moves(check(module, kwargs=inputs)) == HUGGING_FACE[name]


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_batch_in_microbatches(name, monkeypatch):
    pytest.importorskip("transformers")
    near = TYPICAL.memory[0]._replace(size=4 << 10)
    machine = TYPICAL._replace(memory=(near, *TYPICAL.memory[1:]), node_ns=0.0)
    monkeypatch.setattr(limits, "TYPICAL", machine)
    module, inputs = VISION[name].build()
    images = torch.randn(5, *inputs["pixel_values"].shape[1:])
    plan = check(module, kwargs={"pixel_values": images})
    split = {node.output.split(".items")[0] for node in plan.nodes if ".items" in node.output}
    assert len(split) > 10
