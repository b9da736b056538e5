"""Test the one model of time: its sums, and that all callers get the same answer."""

import math

import pytest

from op_samples import SAMPLED, name_of, sample_types, samples_of
from taper_runtime.base.size_values import size_at
from taper_runtime.base.sizes import variable
from taper_runtime.machine import limits
from taper_runtime.machine.choices import least_estimate
from taper_runtime.machine.cost import (
    NEAR,
    Locality,
    beyond_cache,
    cache_bytes,
    cost,
    memory_ns,
    shared_ns,
    threads_worth,
    weight_cost,
)
from taper_runtime.machine.limits import TYPICAL, MachineLimits, Memory, typical
from taper_runtime.native._kernels import kernel_signatures
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.elementwise import MICROOPS
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
    flops = 2 * 5 * 50 * 16
    assert product(5, 50, 16) == flops / 100
    assert product(5, 50, 16, dtype="float64") == flops / 50
    assert product(5, 50, 16, machine=BARE._replace(reached=0.5)) == flops / 50
    assert BARE.rate("int8") == BARE._replace(int8=0.0).rate("float32")
    assert BARE._replace(int8=400.0).rate("int8") == 400


def test_kernels_multiply_whole_halves_of_panels():
    """Unless they widen a weight's elements: these multiply whole panels."""
    assert product(5, 50, 1) == product(5, 50, 8) == product(5, 50, 24) / 3
    x, y = TensorType("float32", (5, 50)), TensorType("float32", (5, 24))
    costs = []
    for dtype in ("float32", "int8"):
        weight = TensorType(dtype, (50, 24), "panels.1")
        costs.append(MATMUL.cost([x, weight], y, MATMUL.complete({})))
    assert [each.sums for each in costs] == [5 * 24, 5 * 32]


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
    assert plain.flops + plain.padding == 2 * 64 * 9 * 20 * 40
    assert plain.sums == 64 * 40
    assert work.flops + work.padding == 2 * points * 20 * 40
    assert work.sums == points * 40
    assert work.scratch == points * (32 + 48) * 4
    assert work.flops / plain.flops == (tile + 2) ** 2 / tile**2 / 9
    free, paid = (
        cost(conv, [x, weight], [y], attrs, limits=BARE._replace(scratch_ns=each))
        for each in (0.0, 0.5)
    )
    assert paid - free == work.scratch / 2
    spilled, kept = (
        cost(conv, [x, weight], [y], attrs, limits=BARE._replace(scratch_ns=0.5, spill=each))
        for each in (3.0, 1.0)
    )
    assert spilled - kept == {2: 0, 4: 2 * work.scratch / 2}[tile]  # 16 or 36 vectors


def form_of(limits, side, channels, out=0):
    """The fastest form of a 3x3 convolution's weight, by the model."""
    conv, out = REGISTRY["CONV"], out or channels
    window = {"kernel": (3, 3), "stride": (1, 1), "padding": (1,) * 4, "dilation": (1, 1)}
    x, y = (TensorType("float32", (1, side, side, n)) for n in (channels, out))
    weight = TensorType("float32", (3, 3, channels, out))
    times = {
        format: weight_cost(
            conv, [x, weight._replace(format=format)], [y], conv.complete(window), limits
        )
        for format in ("plain", "winograd.2", "winograd.4")
    }
    return min(times, key=times.__getitem__)


def test_each_limit_can_decide_the_form_of_a_convolution(monkeypatch):
    """Where products are slow the largest tiles win, where memory or transforms are slow others."""
    machine = BARE._replace(scratch_ns=1 / 30, flops=20.0)
    assert form_of(machine, 28, 128) == "winograd.4"
    assert form_of(machine._replace(scratch_ns=10.0), 28, 128) == "plain"
    assert form_of(machine._replace(spill=100.0), 28, 128) == "winograd.2"
    slow = Memory("DRAM", 0, 0.01, 0.01)
    monkeypatch.setattr(limits, "TYPICAL", TYPICAL._replace(memory=(*MEMORY[:2], slow)))
    assert form_of(machine, 28, 128) == "plain"  # with the fewest bytes


#: Measured on a Zen 3, one thread, where the fastest form wins by 15% or more.
@pytest.mark.parametrize(
    ("side", "channels", "out", "avx2", "baseline"),
    [
        (7, 512, 512, "winograd.2", "winograd.4"),
        (8, 160, 160, "winograd.2", "winograd.4"),
        (8, 320, 160, "winograd.2", "winograd.4"),
        (14, 256, 256, "winograd.4", "winograd.4"),
        (16, 256, 128, "winograd.4", "winograd.4"),
        (28, 96, 96, "winograd.4", "winograd.4"),
        (28, 128, 128, "winograd.4", "winograd.4"),
        (56, 48, 48, "winograd.4", "winograd.4"),
        (56, 64, 64, "winograd.4", "winograd.4"),
    ],
)
def test_the_model_takes_the_forms_that_were_measured_to_be_fastest(
    side, channels, out, avx2, baseline
):
    assert form_of(typical("avx2"), side, channels, out) == avx2
    assert form_of(typical("baseline"), side, channels, out) == baseline


def test_a_variant_replaces_padding_and_scratch_but_not_sums():
    types = [TensorType("float32", (5, 50)), TensorType("float32", (50, 17))]
    output, attrs = TensorType("float32", (5, 17)), MATMUL.complete({})
    machine = BARE._replace(sum_steps=8, scratch_ns=0.5)
    spent = [
        cost(MATMUL, types, [output], attrs, limits=machine, extra=extra)
        for extra in ((0, 0), (300, 0), (0, 40))
    ]
    assert spent[0] == (2 * 5 * 50 * 17 + 2 * 8 * 5 * 24) / 100
    assert [each - spent[0] for each in spent[1:]] == pytest.approx([3, 20])


@pytest.mark.parametrize("levels", ["8.64.float32", "4.32.float16"])
def test_levels_are_widened_once_for_all_rows(levels):
    """Unless the activations are rounded too, so that bytes are multiplied."""
    weight = TensorType("float32", (64, 32), f"blocks.{levels}.symmetric")
    machine = typical("avx2")
    cast = machine.function("CAST:int16", "int8")

    def beyond(rows, **attrs):
        x, y = (TensorType("float32", (rows, size)) for size in (64, 32))
        spent = [
            cost(MATMUL, [x, each], [y], MATMUL.complete(attrs), limits=machine)
            for each in (weight, weight._replace(format="panels.1"))
        ]
        return spent[0] - spent[1]

    assert beyond(1) == beyond(16) == pytest.approx(64 * 32 * cast)
    assert beyond(1, activation_group=32) == 0


@pytest.mark.parametrize(
    ("ns", "best"),
    [([9.0], 0), ([100.0, 96.0], 0), ([100.0, 96.0, 95.0], 2), ([math.inf, 5.0], 1)],
)
def test_estimates_within_5_percent_leave_the_default(ns, best):
    assert least_estimate(ns) == best


def test_only_what_a_run_reads_of_a_weight_is_traffic():
    """A product reads all of its weight, an embedding the rows that it takes."""
    types = [TensorType("float32", (5, 50)), TensorType("float32", (50, 16))]
    output = TensorType("float32", (5, 16))
    product = weight_cost(MATMUL, types, [output], MATMUL.complete({}), BARE)
    assert product == memory_ns(4 * 50 * 16)
    table, index = TensorType("float32", (10_000, 16)), TensorType("int64", (3,))
    embedding, rows = REGISTRY["EMBEDDING"], TensorType("float32", (3, 16))
    taken = weight_cost(embedding, [table, index], [rows], embedding.complete({}), BARE)
    assert taken == memory_ns(rows.nbytes + index.nbytes)


def test_blocks_are_transposed_and_rows_are_moved():
    """Whether the last axis stays the last decides; a concatenation ends rows where inputs end."""
    x = TensorType("float32", (1, 3, 20, 30))

    def work(name, inputs, **attrs):
        op = REGISTRY[name]
        return op.cost(inputs, op.infer(inputs, attrs), op.complete(attrs))

    moved, blocks = work("PERMUTE", [x], axes=(2, 0, 1, 3)), work("PERMUTE", [x], axes=(0, 2, 3, 1))
    assert (moved.rows, moved.functions) == (60, ())
    assert (blocks.rows, blocks.functions) == (0, (("ADD", "float32", x.size),))
    assert work("TRANSPOSE", [x], axis0=0, axis1=1) == moved
    assert work("TRANSPOSE", [x], axis0=1, axis1=3) == blocks
    assert work("CAT", [x, x], axis=3).rows == 2 * 60
    assert work("CAT", [x, x], axis=0).rows == 2


#: Hundredths of a nanosecond on vectors of 4 floats, of 8 and of 16.
TIMES = {
    ("EXP", "float32"): (150, 50, 20),
    ("ADD", "float32"): (16, 12, 7),
    ("TAN", "float32"): (90, 90, 91),
}


@pytest.mark.parametrize(
    ("isa", "exp", "add", "tan"),
    [
        ("baseline", 150, 16, 90),
        ("avx2", 50, 12, 90),
        ("avx512", 20, 7, 91),
        ("neon", 100, 16, 90),  # as SSE, and at most twice AVX2
    ],
)
def test_elementwise_functions_take_their_measured_times(monkeypatch, isa, exp, add, tan):
    monkeypatch.setattr(limits, "function_times", lambda: TIMES)
    machine = BARE._replace(isa=isa, function_ns=0.01)
    x = TensorType("float32", (5, 40))
    program = {"code": ("EXP", "TAN", "ADD"), "args": (0, 0, 1, 2), "scalars": ()}
    flops = 3 * 200 / 100
    estimate = cost(REGISTRY["MAP"], [x], [x], program, limits=machine)
    assert estimate == pytest.approx(flops + 200 * (exp + add + tan) / 100)
    half = cost(REGISTRY["MAP"], [x], [x], program, Locality(0.5), machine)
    assert half == pytest.approx(estimate / 2)
    assert cost(REGISTRY["MAP"], [x], [x], program, limits=BARE) == flops


def test_an_epilogue_costs_what_its_program_costs():
    """The operands of an instruction may be the product, an extra, a scalar or a result."""
    code, args = ("ADD", "MUL", "GELU"), (0, 1, 2, -1, 3)
    attrs = {"code": code, "args": args, "scalars": (2.0,)}
    x, w, bias = (TensorType("float32", shape) for shape in ((6, 32), (32, 16), (16,)))
    y = TensorType("float32", (6, 16))
    product = REGISTRY["MATMUL"].cost([x, w], y, MATMUL.complete({}))
    fused = REGISTRY["MATMUL"].cost([x, w, bias], y, MATMUL.complete(attrs))
    alone = REGISTRY["MAP"].cost([y, bias], y, attrs)
    assert product.functions == ()
    assert fused.functions == alone.functions == tuple((c, "float32", 96) for c in code)
    assert fused.padding == product.padding == 0


def test_every_elementwise_function_has_a_time():
    """Each op of the table has a time for each dtype that a kernel computes it in."""
    times = limits.function_times()
    for name, micro in MICROOPS.items():
        for dtype in set(micro.dtypes) & {t for _, t in times}:
            kernels = [k for k in kernel_signatures(name) if f"{dtype}" in k.split(" -> ")[0]]
            assert not kernels or (name, dtype) in times, (name, dtype)
    assert all(min(each) > 0 for each in times.values())


def test_depthwise_convolutions_load_more_than_they_multiply():
    """Whole tiles are computed, and a stride of two takes more loads for a pixel."""
    conv = REGISTRY["CONV"]

    def work(side, stride):
        window = {"kernel": (3, 3), "stride": (stride,) * 2, "padding": (1,) * 4}
        attrs = conv.complete({**window, "dilation": (1, 1), "groups": 8})
        x, y = (TensorType("float32", (1, n, n, 8)) for n in (side * stride, side))
        return conv.cost([x, TensorType("float32", (3, 3, 1, 8))], y, attrs)

    for side in (8, 7):
        assert work(side, 1).flops == work(side, 2).flops == 2 * 9 * side * side * 8
        assert 0 < work(side, 1).loads < work(side, 2).loads
        assert work(side, 1).padding == work(side, 2).padding
    assert work(7, 1).flops + work(7, 1).padding == work(8, 1).flops + work(8, 1).padding
    assert work(7, 1).loads == work(8, 1).loads


def test_a_load_takes_the_time_of_some_steps():
    conv = REGISTRY["CONV"]
    window = {"kernel": (3, 3), "stride": (1, 1), "padding": (1,) * 4, "dilation": (1, 1)}
    attrs, x = conv.complete({**window, "groups": 8}), TensorType("float32", (1, 8, 8, 8))
    types = [x, TensorType("float32", (3, 3, 1, 8))]
    loads = conv.cost(types, x, attrs).loads
    bare = cost(conv, types, [x], attrs, limits=BARE)
    loaded = cost(conv, types, [x], attrs, limits=BARE._replace(load_steps=3.0))
    assert loaded - bare == pytest.approx(2 * 3 * loads / 100)


def test_rows_take_time_beyond_their_elements():
    norm, machine = REGISTRY["LAYER_NORM"], BARE._replace(row_ns=2.0)
    attrs = norm.complete({"dims": 1, "eps": 1e-5})
    long, short = (TensorType("float32", shape) for shape in ((4, 64), (64, 4)))
    spent = [
        cost(norm, [x], [x], attrs, limits=machine) - cost(norm, [x], [x], attrs, limits=BARE)
        for x in (long, short)
    ]
    assert spent == pytest.approx([2 * 16 * 4, 2 * 16 * 64])


@OPS
def test_every_op_has_a_cost(op):
    """An estimate is finite, and no less than a node or the floor of the same machine."""
    bare = MachineLimits("avx512", 1, TYPICAL.flops, TYPICAL.int8, TYPICAL.memory)
    for sample in samples_of(op.name):
        types = sample_types(sample)
        output, *_ = op.infer_types(types, sample.attrs)
        attrs = op.complete(sample.attrs)
        work = op.cost(types, output, attrs)
        *amounts, functions, rows, loads = work
        assert all(type(amount) is int and amount >= 0 for amount in (*amounts, rows, loads))
        assert all(type(count) is int and count >= 0 for *_, count in functions)
        estimate = cost(op, types, [output], attrs)
        assert TYPICAL.node_ns <= estimate < math.inf
        assert (
            estimate
            >= cost(op, types, [output], attrs, limits=bare)
            >= work.flops / TYPICAL.int8 / 4
        )


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
