"""SDPA becomes one ATTENTION node, whatever the ranks, masks and heads."""

from __future__ import annotations

import pytest
import torch

from lowering import check_lowering, ops_of

sdpa = torch.nn.functional.scaled_dot_product_attention


def tensors(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


Q, K, V = (2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6)


@pytest.mark.parametrize(
    ("shapes", "ops"),
    [
        ((Q, K, V), ["ATTENTION"]),
        ((Q[1:], K[1:], V[1:]), ["ATTENTION"]),
        ((Q[2:], K[2:], V[2:]), ["RESHAPE"] * 3 + ["ATTENTION", "RESHAPE"]),
        (((3, *Q), (3, *K), (3, *V)), ["RESHAPE"] * 3 + ["ATTENTION", "RESHAPE"]),
        (((1, 4, 5, 8), K, V), ["EXPAND", "ATTENTION"]),
        ((Q, (2, 1, 7, 8), (2, 1, 7, 6)), ["ATTENTION"]),
    ],
)
def test_ranks(shapes, ops):
    assert ops_of(check_lowering(lambda q, k, v: sdpa(q, k, v), *tensors(*shapes))) == ops


def test_causal_from_the_top_left_and_scale():
    graph = check_lowering(
        lambda q, k, v: sdpa(q, k, v, is_causal=True, scale=0.25), *tensors(Q, K, V)
    )
    (node,) = graph.order()
    assert node.complete_attrs()["causal"]
    assert node.complete_attrs()["diagonal"] == 0
    assert node.complete_attrs()["scale"] == 0.25


def test_default_scale_is_resolved():
    (node,) = check_lowering(lambda q, k, v: sdpa(q, k, v), *tensors(Q, K, V)).order()
    assert node.attrs["scale"] == pytest.approx(8**-0.5)


def test_masks():
    biases = tensors((5, 7), (1, 7), (4, 5, 7), (2, 1, 5, 7), (2, 4, 5, 7))
    keeps = [bias > -0.5 for bias in biases]
    for keep in keeps:
        keep[..., 0, :] = False  # a row that attends to nothing gives zeros

    def model(q, k, v, masks):
        return [sdpa(q, k, v, attn_mask=mask) for mask in masks]

    graph = check_lowering(model, *tensors(Q, K, V), biases + keeps)
    assert ops_of(graph) == ["ATTENTION"] * 10


def test_masks_of_other_ranks():
    def model(q, k, v, mask):
        five = sdpa(q[None], k[None], v[None], attn_mask=mask[None, :, None])
        four = sdpa(q.expand(3, *q.shape), k, v, attn_mask=mask[:, None])
        three = sdpa(q[0], k[0], v[0], attn_mask=mask[0])
        two = sdpa(q[0, 0], k[0, 0], v[0, 0], attn_mask=mask[0])
        return five, four, three, two

    check_lowering(model, *tensors(Q, K, V, (2, 5, 7)))


def test_grouped_heads():
    def model(q, k, v):
        four = sdpa(q, k, v, enable_gqa=True)
        three = sdpa(q[0], k[0], v[0], enable_gqa=True)
        return four, three

    check_lowering(model, *tensors(Q, (2, 2, 7, 8), (2, 2, 7, 6)))


def test_multihead_attention_module():
    net = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    (x,) = tensors((2, 5, 8))
    check_lowering(net, x, x, x, need_weights=False)
    check_lowering(net, x, x, x)


def test_transformer_encoder_layer():
    net = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    (x,) = tensors((2, 5, 8))
    check_lowering(net, x)
