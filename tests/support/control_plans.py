"""Plans with branches and loops, made by hand."""

import numpy as np

from taper_runtime.base.sizes import variable
from taper_runtime.ops.opdef import contiguous_strides
from taper_runtime.plan.plan import Placement, Plan, PlanBlock, PlanNode, TensorSpec
from taper_runtime.plan.validate import validate

ROWS = variable("rows", 0, 50)
N = 6000  # elements of a row: two threads share the work of one


def parts(**tensors):
    """Specs and placements of ``name=(dtype, shape, role)``, with a root behind that if any."""
    specs, placements = {}, {}
    for name, (dtype, shape, role, *root) in tensors.items():
        specs[name] = TensorSpec(name, dtype, shape, role)
        placements[name] = Placement(root[0] if root else name, 0, contiguous_strides(shape))
    return specs, placements


def block(nodes, inputs, outputs, **tensors):
    return PlanBlock(tuple(nodes), *parts(**tensors), tuple(inputs.split()), tuple(outputs.split()))


def plan_of(node, inputs, outputs, constants=None, sizes=None, **tensors):
    specs, placements = parts(**tensors)
    plan = Plan(
        (node,), specs, placements, tuple(inputs.split()), tuple(outputs.split()), constants or {}
    )
    plan = plan._replace(sizes=sizes or {})
    validate(plan)
    return plan


F, INT, B = "float32", "int64", "bool"


def cumulative(last="ADD"):
    """For each row x: h = sin(h) + x, z = h * w; within it, s adds up h's four parts."""
    part = (N // 4,)
    inner = block(
        [PlanNode("ADD", ("s", "p"), ("s1",))],
        "s p",
        "s1",
        s=(F, part, "input"),
        p=(F, part, "input"),
        s1=(F, part, "output", "s"),
    )
    body = block(
        [
            PlanNode("SIN", ("h",), ("a",)),
            PlanNode(last, ("a", "x"), ("h1",)),
            PlanNode("MUL", ("h1", "w"), ("z",)),
            PlanNode("RESHAPE", ("h1",), ("parts",), {"shape": (4, N // 4)}),
            PlanNode("SCAN", ("t", "parts"), ("t1",), {"carries": 1, "xs": 1}, blocks=(inner,)),
        ],
        "h t x",
        "h1 t1 z",
        h=(F, (N,), "input"),
        t=(F, part, "input"),
        x=(F, (N,), "input"),
        a=(F, (N,), "intermediate"),
        h1=(F, (N,), "output"),
        z=(F, (N,), "output"),
        parts=(F, (4, N // 4), "intermediate", "h1"),
        t1=(F, part, "output"),
    )
    return plan_of(
        PlanNode(
            "SCAN", ("h0", "t0", "xs"), ("ho", "to", "zs"), {"carries": 2, "xs": 1}, blocks=(body,)
        ),
        "h0 t0 xs",
        "ho to zs",
        {"w": np.linspace(-1, 1, N, dtype=np.float32)},
        {"rows": (0, 50)},
        h0=(F, (N,), "input"),
        t0=(F, part, "input"),
        xs=(F, (ROWS, N), "input"),
        w=(F, (N,), "constant"),
        ho=(F, (N,), "output"),
        to=(F, part, "output"),
        zs=(F, (ROWS, N), "output"),
    )


def counting(limit_op="LT", add="ADD"):
    """While i < limit: i = i + 1, and x = x + i where i is odd, else table[i]."""
    sizes = {"i": (INT, (), "input"), "x": (F, (2,), "input"), "limit": (INT, (), "input")}
    condition = block(
        [PlanNode(limit_op, ("ci", "climit"), ("more",))],
        "ci cx climit",
        "more",
        more=(B, (), "output"),
        **{f"c{name}": spec for name, spec in sizes.items()},
    )
    body = block(
        [
            PlanNode(add, ("i", "one"), ("i1",)),
            PlanNode("INDEX_SELECT", ("table", "i"), ("row",), {"axis": 0}),
            PlanNode("LGAMMA", ("row",), ("g",)),  # numpy's
            PlanNode("ADD", ("x", "g"), ("x1",)),
        ],
        "i x limit",
        "i1 x1",
        i1=(INT, (), "output"),
        row=(F, (2,), "intermediate"),
        g=(F, (2,), "intermediate"),
        x1=(F, (2,), "output", "x"),
        **sizes,
    )
    return plan_of(
        PlanNode(
            "WHILE", ("i0", "x0", "top"), ("io", "xo"), {"carries": 2}, blocks=(condition, body)
        ),
        "i0 x0 top",
        "io xo",
        {"one": np.array(1), "table": np.arange(2, 22, dtype=np.float32).reshape(10, 2)},
        i0=(INT, (), "input"),
        x0=(F, (2,), "input"),
        top=(INT, (), "input"),
        one=(INT, (), "constant"),
        table=(F, (10, 2), "constant"),
        io=(INT, (), "output"),
        xo=(F, (2,), "output"),
    )


def branching():
    """max(x, 0) if p, else sin(-x)."""
    row = (F, (3,), "input")
    then = block([PlanNode("RELU", ("a",), ("b",))], "a", "b", a=row, b=(F, (3,), "output"))
    other = block(
        [PlanNode("NEG", ("c",), ("d",)), PlanNode("SIN", ("d",), ("e",))],
        "c",
        "e",
        c=row,
        d=(F, (3,), "intermediate"),
        e=(F, (3,), "output"),
    )
    return plan_of(
        PlanNode("IF", ("p", "x"), ("y",), blocks=(then, other)),
        "p x",
        "y",
        p=(B, (), "input"),
        x=row,
        y=(F, (3,), "output"),
    )


def calling():
    """sin(-x) by a call that nobody else computes."""
    body = block(
        [PlanNode("NEG", ("a",), ("b",)), PlanNode("SIN", ("b",), ("c",))],
        "a",
        "c",
        a=(F, (3,), "input"),
        b=(F, (3,), "intermediate"),
        c=(F, (3,), "output"),
    )
    node = PlanNode("CALL", ("x",), ("y",), {"arguments": '{"k": 1}'}, blocks=(body,))
    return plan_of(node, "x", "y", x=(F, (3,), "input"), y=(F, (3,), "output"))


def delegating():
    """The same as a subgraph of a delegate that nobody has."""
    (node,) = calling().nodes
    node = node._replace(op="CALL_DELEGATE", inputs=("blob", "x"), attrs={"backend": "other"})
    return plan_of(
        node,
        "x",
        "y",
        {"blob": np.arange(5, dtype=np.uint8)},
        blob=("uint8", (5,), "constant"),
        x=(F, (3,), "input"),
        y=(F, (3,), "output"),
    )
