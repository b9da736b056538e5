"""Weights of exported models in model files: what the state dict has."""

import numpy as np
import pytest
import torch

from taper_frontend import export
from taper_openinfer.oinf.exchange import plan_tensors
from taper_openinfer.oinf.reader import Model


@pytest.mark.parametrize("weights", ["fixed", "replaceable"])
def test_weights_of_a_plan(weights):
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(8 * 36, 5),
    ).eval()  # fmt: skip
    found = plan_tensors(export(module, (torch.randn(1, 3, 8, 8),), weights=weights))
    model = Model.of(found.tensors)
    state = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    if weights == "replaceable":
        assert {*found.parameters} == state.keys() - {"1.num_batches_tracked"}
    else:  # the convolution and the batch norm are one
        assert found.parameters == ("4.bias", "4.weight")
        assert len(found.computed) == 2
    for name in found.parameters:
        np.testing.assert_array_equal(model.read(name), state[name])
