"""Devices by name: existing ones compute, others are refused."""

import numpy as np
import pytest

from plan_files import chain
from taper_runtime import InferenceSession, InputError, SessionOptions
from taper_runtime.base.device import Device, available_devices, parse_device


def opened(device):
    options = SessionOptions()
    options.device = device
    return InferenceSession(chain(["NEG"], 2), options)


class TorchDevice:
    """An object with the text of a ``torch.device``."""

    def __init__(self, text):
        self._text = text

    def __str__(self):
        return self._text


@pytest.mark.parametrize("device", ["cpu", "cpu:0", Device("cpu", 0), TorchDevice("cpu")])
def test_the_cpu_always_works(device):
    (y,) = opened(device).run(None, {"x": np.ones(2, np.float32)})
    assert y.tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("cpu", Device("cpu", 0)),
        ("cuda", Device("cuda", 0)),
        ("cuda:0", Device("cuda", 0)),
        ("cuda:12", Device("cuda", 12)),
    ],
)
def test_the_number_is_kept(text, device):
    assert parse_device(text) == device
    assert parse_device(str(device)) == device


@pytest.mark.parametrize(
    ("device", "said"),
    [
        *(("cuda", "cuda:0"), ("cuda:3", "cuda:3"), ("cpu:1", "cpu:1")),
        (TorchDevice("cuda:1"), "cuda:1"),
    ],
)
def test_what_is_absent_is_refused_with_what_there_is(device, said):
    with pytest.raises(InputError, match=rf"one of cpu, got '{said}'"):
        opened(device)
    assert available_devices() == [Device("cpu", 0)]


@pytest.mark.parametrize(
    "device", ["", "gpu", "cuda:", "cuda:-1", "cuda:01", "cuda:1 ", "cuda:99999", "CPU", None, 0]
)
def test_another_spelling_is_refused_at_once(device):
    options = SessionOptions()
    with pytest.raises(InputError, match="expected 'cpu', 'cuda' or 'cuda:<number>'"):
        options.device = device
    assert options.device == "cpu"


@pytest.mark.parametrize("executor", ["interpreter", "aotinductor", "mtia", "", None])
def test_another_executor_is_refused_with_those_there_are(executor):
    with pytest.raises(InputError, match="executor: expected one of 'compiled', 'interpreted'"):
        SessionOptions().executor = executor
