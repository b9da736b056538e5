"""A decoder's layer as a program in the simulator, and as a plan, against torch."""

import copy

import numpy as np
import pytest
import torch

import taper_frontend
from decoder_layer import DecoderLayer, arguments, feed_of, simulated, step
from taper_openinfer.simulator.devices import available_devices
from taper_runtime import InferenceSession


@pytest.mark.parametrize("device", available_devices())
def test_a_program_gives_what_torch_gives(device):
    layer = DecoderLayer().eval()
    executor = simulated(layer, device).make_executor()
    for position in range(4):
        got = step(executor, *feed_of(position))
        with torch.no_grad():
            want = layer(*arguments(position)).numpy()
        np.testing.assert_allclose(got, want, 1e-5, 1e-5)


@pytest.mark.filterwarnings("ignore::taper_frontend.ExportWarning")
def test_a_plan_gives_what_the_program_gives():
    layer = DecoderLayer().eval()
    plan = taper_frontend.export(copy.deepcopy(layer), arguments(0), verify=False)
    session = InferenceSession(plan)
    executor = simulated(layer, available_devices()[0]).make_executor()
    for position in range(3):
        got = step(executor, *feed_of(position))
        want = session(*[each.numpy() for each in arguments(position)])
        np.testing.assert_allclose(got, want, 1e-5, 1e-5)
