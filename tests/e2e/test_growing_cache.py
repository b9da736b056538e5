"""Language models of transformers whose cache is an argument, and grows from run to run."""

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import taper_frontend
import taper_runtime
from marks import some

transformers = pytest.importorskip("transformers")

LAYERS = 2


class Step(torch.nn.Module):
    """Reads some tokens after those in a cache."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            hidden_size=64,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=96,
            vocab_size=50,
        )
        self.decoder = transformers.LlamaForCausalLM(config)

    def forward(self, input_ids, cache):
        result = self.decoder(input_ids, past_key_values=cache, use_cache=True)
        return result.logits, result.past_key_values


@pytest.fixture(params=some(["executorch", "exporters"], ["exporters"]))
def shape_of(request):
    """Register the cache as one of transformers' modules does; return what its shapes are given as.

    The first makes caches anew by writing to them, the second puts together what it took apart.
    """
    cache = transformers.DynamicCache
    if request.param == "executorch":
        from transformers.integrations import executorch

        executorch.register_dynamic_cache_export_support()
        yield lambda past: [[{2: past}] * LAYERS] * 2
        del torch.fx._pytree.SUPPORTED_NODES[cache]
    else:
        dynamo = pytest.importorskip("transformers.exporters.exporter_dynamo")
        dynamo.register_pytree_node(cache)
        yield lambda past: [{2: past}] * 2 * LAYERS
    pytree._deregister_pytree_node(cache)


def cache_of(model, tokens):
    with torch.no_grad():
        return model.decoder(torch.tensor([tokens]), use_cache=True).past_key_values


def decode(plan, model, counts):
    """Run a plan for so many tokens at a time, with what it gave; compare with no cache at all."""
    session = taper_runtime.InferenceSession(plan)
    tokens = [3, 1, 4, 1]
    cache = [x.numpy() for x in pytree.tree_leaves(cache_of(model, tokens))]
    for count in counts:
        new = [(7 * len(tokens) + i) % 50 for i in range(count)]
        tokens += new
        feed = dict(zip(plan.inputs, [np.array([new]), *cache], strict=True))
        logits, *cache = session.run(None, feed)
        with torch.no_grad():
            want = model.decoder(torch.tensor([tokens])).logits[:, -count:]
        np.testing.assert_allclose(logits, want.numpy(), rtol=1e-4, atol=1e-5)
        assert {array.shape[2] for array in cache} == {len(tokens)}


def test_tokens_one_by_one(shape_of):
    model = Step().eval()
    ids, past = torch.tensor([[2]]), torch.export.Dim("past", min=1, max=64)
    plan = taper_frontend.export(
        model, (ids, cache_of(model, [1, 2, 3])), dynamic_shapes=(None, shape_of(past))
    )
    low, high = plan.sizes["past"]
    assert low <= 1
    assert high == 64
    decode(plan, model, [1, 1, 1])


def test_any_number_of_tokens(shape_of):
    model = Step().eval()
    plan = taper_frontend.export(
        model,
        (torch.tensor([[2, 7, 1]]), cache_of(model, [1, 2, 3, 4, 5])),
        dynamic_shapes=({1: "count"}, shape_of("past")),
    )
    decode(plan, model, [3, 1, 2])


@pytest.mark.usefixtures("shape_of")
def test_a_program():
    """Torch's own decomposition of a whole program loses what a cache that is made anew holds."""
    model = Step().eval()
    with torch.no_grad():
        program = torch.export.export(
            model, (torch.tensor([[2, 7, 1]]), cache_of(model, [1, 2, 3, 4]))
        )
    targets = [node.target for node in program.graph.nodes]
    decode(taper_frontend.export(program), model, [3])
    assert [node.target for node in program.graph.nodes] == targets
