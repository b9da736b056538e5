"""Judge the architectures of the zoo that the suite leaves out."""

from __future__ import annotations

import pytest
import torch

from marks import LARGER, NUMPY, REFERENCE
from zoo_checks import members, run

torch.set_num_threads(1)

pytestmark = [LARGER, REFERENCE]

#: Without a node that numpy computes.
NATIVE = {
    "text": [
        "RobertaModel",
        "DistilBertModel",
        "AlbertModel",
        "T5EncoderModel",
        "CLIPTextModelWithProjection",
        "OPTForCausalLM",
        "BloomForCausalLM",
        "GPTNeoXForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "Gemma2ForCausalLM",
        "Phi3ForCausalLM",
    ],
    "audio": ["Wav2Vec2ForCTC"],
    "encoder-decoder": ["T5ForConditionalGeneration"],
}
#: Right, whatever computes them.
OTHERS = {
    "text": ["MixtralForCausalLM"],
    "control flow": ["scan: Mamba's selective scan", "while_loop: greedy decoding"],
}


@pytest.mark.parametrize(("group", "name"), members(NATIVE))
def test_native(group, name):
    assert run(group, name).metadata["fallbacks"] == []


@NUMPY
@pytest.mark.parametrize(("group", "name"), members(OTHERS))
def test_right(group, name):
    run(group, name)
