"""Test the one model of time: its sums, and that all callers get the same answer."""

import math

import pytest

from op_samples import SAMPLED, name_of, sample_types, samples_of
from taper_runtime.base.size_values import size_at
from taper_runtime.base.sizes import variable
from taper_runtime.machine import limits
from taper_runtime.machine.cost import (
    NEAR,
    Locality,
    beyond_cache,
    cache_bytes,
    cost,
    memory_ns,
    shared_ns,
    threads_worth,
)
from taper_runtime.machine.limits import TYPICAL, MachineLimits, Memory
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import Cost, TensorType

OPS = pytest.mark.parametrize("op", SAMPLED, ids=name_of)

MEMORY = (Memory("L2", 1000, 40.0, 40.0), Memory("L3", 8000, 5.0, 5.0), Memory("DRAM", 0, 2.0, 2.0))
BARE = MachineLimits("avx2", 1, 100.0, 0.0, MEMORY)
MATMUL = REGISTRY["MATMUL"]


def product(m, k, n, place=NEAR, machine=BARE, dtype="float32"):
    """The cost of ``[m, k] @ [k, n]``."""
    types = [TensorType(dtype, (m, k)), TensorType(dtype, (k, n))]
    output = TensorType(dtype, (m, n))
    return cost(MATMUL, types, [output], MATMUL.complete({}), place, machine)


def test_arithmetic_at_the_rate_of_the_dtype():
    flops = 2 * 5 * 50 * 8
    assert product(5, 50, 8) == flops / 100
    assert product(5, 50, 8, dtype="float64") == flops / 50
    assert BARE.rate("int8") == BARE._replace(int8=0.0).rate("float32")
    assert BARE._replace(int8=400.0).rate("int8") == 400


def test_streams_overlap_with_arithmetic_and_waiting_does_not():
    arithmetic = product(5, 50, 8)
    assert product(5, 50, 8, Locality(streamed=arithmetic / 2)) == arithmetic
    assert product(5, 50, 8, Locality(streamed=3 * arithmetic)) == 3 * arithmetic
    assert product(5, 50, 8, Locality(waited=7.0)) == arithmetic + 7


def test_a_part_of_a_node_costs_its_part_and_a_node():
    machine = BARE._replace(node_ns=11.0)
    whole, part = product(5, 50, 8, machine=machine), product(5, 50, 8, Locality(0.25), machine)
    assert part - 11 == (whole - 11) / 4


def test_each_sum_costs_some_steps():
    assert product(5, 50, 8, machine=BARE._replace(sum_steps=10)) == product(5, 60, 8)


@pytest.mark.parametrize("tile", [2, 4])
def test_format_of_a_weight_decides_its_cost(tile):
    """What Winograd's form saves in products it pays in transforms and in bytes of the weight."""
    x, y = TensorType("float32", (1, 8, 8, 20)), TensorType("float32", (1, 8, 8, 40))
    points = (8 // tile) ** 2 * (tile + 2) ** 2
    conv = REGISTRY["CONV"]
    window = {"kernel": (3, 3), "stride": (1, 1), "padding": (1,) * 4, "dilation": (1, 1)}
    attrs = conv.complete(window)
    plain = conv.cost([x, TensorType("float32", (3, 3, 20, 40))], y, attrs)
    weight = TensorType("float32", (3, 3, 20, 40), f"winograd.{tile}")
    work = conv.cost([x, weight], y, attrs)
    assert plain.flops + plain.padding == 2 * 64 * 9 * 20 * 48
    assert plain.sums == 64 * 48
    assert work.flops + work.padding == 2 * points * 20 * 48
    assert work.sums == points * 48
    assert work.scratch == points * (32 + 48) * 4
    assert work.flops / plain.flops == (tile + 2) ** 2 / tile**2 / 9
    free, paid = (
        cost(conv, [x, weight], [y], attrs, limits=BARE._replace(scratch_ns=each))
        for each in (0.0, 0.5)
    )
    assert paid - free == work.scratch / 2


@OPS
def test_every_op_has_a_cost(op):
    """An estimate is finite, and no less than a node or the floor of the same machine."""
    bare = TYPICAL._replace(sum_steps=0, scratch_ns=0.0, node_ns=0.0)
    for sample in samples_of(op.name):
        types = sample_types(sample)
        output, *_ = op.infer_types(types, sample.attrs)
        attrs = op.complete(sample.attrs)
        work = op.cost(types, output, attrs)
        assert all(type(amount) is int and amount >= 0 for amount in work)
        estimate = cost(op, types, [output], attrs)
        assert TYPICAL.node_ns <= estimate < math.inf
        assert estimate >= cost(op, types, [output], attrs, limits=bare) >= work.flops / 160 / 4


def test_a_thread_for_every_480_kflop_or_80_kb():
    assert [threads_worth(Cost(n, 0)) for n in (0, 479_999, 480_000, 959_999)] == [0, 0, 1, 1]
    assert threads_worth(Cost(960_000, 79_999)) == threads_worth(Cost(0, 160_000)) == 2


def test_threads_of_sizes_that_inputs_decide():
    n = variable("n", 1, 1 << 20)
    threads = threads_worth(Cost(1000 * n, 100 * n))
    for value in (1, 479, 480, 1600, 99_999):
        assert size_at(threads, {"n": value}) == threads_worth(Cost(1000 * value, 100 * value))


def test_levels_of_memory(monkeypatch):
    monkeypatch.setattr(limits, "TYPICAL", BARE)
    assert (shared_ns(100), memory_ns(100)) == (20.0, 50.0)
    assert cache_bytes() == 1000
    assert [beyond_cache(nbytes) for nbytes in (400, 500, 1500)] == [0, 0, 1000]
