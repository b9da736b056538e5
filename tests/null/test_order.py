"""Compare the order of nodes, and the memory that is free by then, with their definitions."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from plan_strategies import plans
from taper_runtime.base.dtypes import DTYPES
from taper_runtime.plan.extents import extent_of
from taper_runtime.plan.node_order import Order, memory_before, order_of, users_of


def executed(plan):
    return [node for node in plan.nodes if plan.is_executed(node)]


def bytes_of(plan, name):
    """Every single byte of a tensor: (root, byte)."""
    root, offset, strides = plan.placements[name]
    dtype, shape, _ = plan.tensors[name].storage
    size = DTYPES[dtype].size
    elements = np.zeros(shape, np.int64)
    for axis, (count, stride) in enumerate(zip(shape, strides, strict=True)):
        steps = np.arange(count) * stride * size
        elements += steps.reshape(-1, *[1] * (len(shape) - axis - 1))
    return {(root, int(e) + offset + i) for e in elements.flat for i in range(size)}


@settings(derandomize=True)
@given(plans())
def test_nodes_that_touch_the_same_bytes_keep_their_order(plan):
    """All such pairs are ordered, and no pair is that does not touch bytes of one stretch."""
    nodes = executed(plan)
    order = order_of(plan, nodes)
    reads = [set().union(*(bytes_of(plan, n) for n in node.reads)) for node in nodes]
    writes = [set().union(*(bytes_of(plan, n) for n in node.outputs)) for node in nodes]
    for later in range(len(nodes)):
        for node in range(later):
            shared = writes[node] & (reads[later] | writes[later]) | reads[node] & writes[later]
            if {root for root, _ in shared} - plan.constants.keys():
                assert order.ancestors[later] >> node & 1, (nodes[node], nodes[later])
        for node in order.producers[later]:
            assert node < later
            assert meets(plan, nodes[node], nodes[later]), (nodes[node], nodes[later])


def meets(plan, node, later):
    pairs = [(a, b) for a in node.outputs for b in (*later.reads, *later.outputs)]
    pairs += [(a, b) for a in node.reads for b in later.outputs]
    return any(
        plan.placements[a].root == plan.placements[b].root
        and extent_of(plan.tensors[a].storage, plan.placements[a]).overlaps(
            extent_of(plan.tensors[b].storage, plan.placements[b])
        )
        for a, b in pairs
    )


@settings(derandomize=True)
@given(plans())
def test_users_are_those_that_touch_a_root(plan):
    nodes = executed(plan)
    roots = {name: root for name, (root, _, _) in plan.placements.items()}
    users = users_of(nodes, roots, kept=plan.outputs[:1])
    for root, bits in users.items():
        expected = {
            i for i, n in enumerate(nodes) for m in (*n.reads, *n.outputs) if roots[m] == root
        }
        if root in [roots[name] for name in plan.outputs[:1]]:
            expected.add(len(nodes))
        assert {i for i in range(len(nodes) + 1) if bits >> i & 1} == expected


@st.composite
def orders(draw):
    """A random partial order, and users of pieces of memory; ``len`` stands for the run's end."""
    count = draw(st.integers(1, 10))
    producers, ancestors = [], []
    for node in range(count):
        waits_for = sorted(draw(st.sets(st.integers(0, node - 1), max_size=3))) if node else []
        producers.append(waits_for)
        bits = 0
        for each in waits_for:
            bits |= ancestors[each] | 1 << each
        ancestors.append(bits)
    users = st.sets(st.integers(0, count), min_size=1, max_size=4)
    return Order(producers, ancestors), draw(st.lists(users, max_size=12))


@settings(derandomize=True)
@given(orders())
def test_memory_is_before_other_if_all_its_users_are(drawn):
    order, users = drawn
    count = len(order.ancestors)
    before = memory_before(order, [sum(1 << node for node in nodes) for nodes in users])
    for b, later in enumerate(users):
        nodes = [node for node in later if node < count]
        for a, earlier in enumerate(users):
            expected = bool(nodes) and all(
                user < count and order.ancestors[node] >> user & 1
                for node in nodes
                for user in earlier
            )
            assert bool(before[b] >> a & 1) == expected, (a, b)


@settings(derandomize=True)
@given(st.lists(st.sets(st.integers(0, 8), min_size=1, max_size=4), max_size=12))
def test_in_a_total_order_intervals_say_it(users):
    order = Order([[n - 1] if n else [] for n in range(9)], [(1 << n) - 1 for n in range(9)])
    assert order.is_total
    before = memory_before(order, [sum(1 << node for node in nodes) for nodes in users])
    for b, later in enumerate(users):
        for a, earlier in enumerate(users):
            assert bool(before[b] >> a & 1) == (max(earlier) < min(later))


def test_two_nodes_without_an_order_are_no_total_order():
    assert not Order([[], [], [0, 1]], [0, 0, 3]).is_total
