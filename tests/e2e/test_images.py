"""Judge the vision models of the zoo that the suite leaves out."""

from __future__ import annotations

import pytest
import torch

from marks import NUMPY, REFERENCE
from vision_checks import check_microbatches, check_moves

torch.set_num_threads(1)

pytestmark = [NUMPY, REFERENCE]

#: Model of the zoo -> nodes that may do nothing but move values.
MOVES = {
    "EfficientNetForImageClassification": 1,
    "DeiTForImageClassification": 1,
    "SegformerForSemanticSegmentation": 2,
    "CLIPVisionModelWithProjection": 1,
    "Dinov2ForImageClassification": 1,
}

#: Models whose batches are split.
SPLIT = [
    *MOVES,
    "ResNetForImageClassification",
    "ConvNextForImageClassification",
    "ViTForImageClassification",
]


@pytest.mark.parametrize("name", MOVES)
def test_moves(name):
    check_moves(name, MOVES[name])


@pytest.mark.parametrize("name", SPLIT)
def test_batch_in_microbatches(name, monkeypatch):
    check_microbatches(name, monkeypatch)
