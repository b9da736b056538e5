"""Judge the texts of the language models that the suite leaves out."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from torch.utils._pytree import tree_leaves

import decoders
import encoder_decoders
import taper_frontend
import taper_runtime
from marks import REFERENCE
from recurrent_decoders import RECURRENT

torch.set_num_threads(1)

pytestmark = REFERENCE

PROMPTS = [[5, 6, 7], [9], [1, 2, 3, 4, 8, 33, 12]]


def texts(plan):
    """Return texts that are written together."""
    generator = taper_runtime.Generator(taper_runtime.InferenceSession(plan))
    requests = [generator.submit(prompt, max_new_tokens=64) for prompt in PROMPTS]
    while generator.active:
        generator.step()
    return [request.tokens for request in requests]


@pytest.mark.parametrize("name", [name for name in encoder_decoders.MODELS if name != "bart"])
def test_encoder_decoders(name):
    of = encoder_decoders.model(name)
    expected = [encoder_decoders.greedy(of, prompt, 64) for prompt in PROMPTS]
    assert texts(encoder_decoders.plan(name)) == expected


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent(name):
    config, sizes = RECURRENT[name]
    torch.manual_seed(1)
    made = getattr(transformers, config)(**sizes)
    model = transformers.AutoModelForCausalLM.from_config(made).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    model.generation_config.eos_token_id = None
    expected = [decoders.greedy(model, prompt, 64) for prompt in PROMPTS]
    plan = taper_frontend.export_decoder(model, max_context=80, verify=False)
    assert plan.metadata["fallbacks"] == []
    assert texts(plan) == expected


@pytest.mark.filterwarnings("ignore:.*children_specs:FutureWarning")  # of transformers' runner
@pytest.mark.parametrize("static", [False, True])
def test_stages_of_generation(static):
    """transformers' exporters make programs of the stages, with a cache among the inputs.

    A cache is as in transformers' own format: some of its releases capture sliding windows whole.
    """
    from transformers.exporters.exporter_dynamo import DynamoConfig, DynamoExporter
    from transformers.exporters.utils import decompose_for_generation

    import taper_frontend.transformers_backend as backend

    model = decoders.decoder("gemma3")
    config = transformers.GenerationConfig(
        cache_implementation="static" if static else None, max_length=32, pad_token_id=0
    )
    given = {
        "input_ids": torch.tensor([[5, 6, 7, 8]]),
        "attention_mask": torch.ones((1, 4), dtype=torch.int64),
    }
    exported, captured = (
        exporter.export_for_generation(model, given, options, generation_config=config)
        for exporter, options in (
            (backend.TaperExporter(), backend.TaperConfig()),
            (DynamoExporter(), DynamoConfig()),
        )
    )
    stages = decompose_for_generation(model, given, generation_config=config)
    assert exported.runners.keys() == stages.keys()
    for name, (part, feed) in stages.items():
        with torch.no_grad():
            expected = part(**copy.deepcopy(dict(feed)))
        got = exported.runners[name](**copy.deepcopy(dict(feed)))
        torch.testing.assert_close(got.logits, expected.logits, rtol=1e-3, atol=1e-4)
        taken = {key: value for key, value in feed.items() if not isinstance(value, bool)}
        with torch.no_grad():
            result = captured.runners[name](**copy.deepcopy(taken))
        for ours, theirs in zip(tree_leaves(got), tree_leaves(result), strict=True):
            if isinstance(theirs, torch.Tensor):
                torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
