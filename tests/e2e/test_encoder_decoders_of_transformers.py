"""Judge the encoder-decoders that the suite leaves out."""

from __future__ import annotations

import pytest
import torch

import taper_runtime
from encoder_decoders import MODELS, greedy, model, plan

torch.set_num_threads(1)

SOURCES = [[5, 6, 7], [9], [1, 2, 3, 4, 8, 33, 12]]


@pytest.mark.parametrize("name", [name for name in MODELS if name != "bart"])
def test_texts_are_torchs(name):
    of, generator = model(name), taper_runtime.Generator(taper_runtime.InferenceSession(plan(name)))
    together = [generator.submit(source, max_new_tokens=64) for source in SOURCES]
    while generator.active:
        generator.step()
    assert [r.tokens for r in together] == [greedy(of, source, 64) for source in SOURCES]
