"""Vision models: exported, run natively from end to end, compared with torch."""

from __future__ import annotations

import pytest
import torch

from marks import NUMPY, some
from tools.zoo.architecture import as_trained
from vision_checks import check, check_microbatches, check_moves, moves
from vision_models import MODELS

torch.set_num_threads(1)

pytestmark = NUMPY

#: Model of the zoo -> nodes that may do nothing but move values. Each has one permutation where the
#: image comes in. test_images.py has more.
HUGGING_FACE = {
    "ResNetForImageClassification": 1,
    "MobileNetV2ForImageClassification": 1,
    "ConvNextForImageClassification": 1,
    "ViTForImageClassification": 1,
    "SwinForImageClassification": 3,  # windows are cut out and put back in each of 4 layers
}


@pytest.mark.parametrize("name", MODELS)
def test_plain(name):
    make, shape, expected = MODELS[name]
    torch.manual_seed(0)
    assert moves(check(as_trained(make()).eval(), (torch.randn(shape),))) == expected


@pytest.mark.parametrize("name", some(HUGGING_FACE, ["MobileNetV2ForImageClassification"]))
def test_transformers(name):
    pytest.importorskip("transformers")
    check_moves(name, HUGGING_FACE[name])


@pytest.mark.parametrize(
    "name",
    some(
        ["MobileNetV2ForImageClassification", "SwinForImageClassification"],
        ["SwinForImageClassification"],
    ),
)
def test_batch_in_microbatches(name, monkeypatch):
    pytest.importorskip("transformers")
    check_microbatches(name, monkeypatch)
